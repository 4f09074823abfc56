"""The live page: shows what the server does at the moment, and has a form to try a model."""
