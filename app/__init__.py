"""Starling: a DNN inference server. `starling serve` starts it; `app.main.create_app` composes it."""

__version__ = "0.1.0"
