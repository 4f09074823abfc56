"""echo: its input, unchanged."""
