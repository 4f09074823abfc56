"""The live page: what the server does, as it does it, and a form to try a model."""
