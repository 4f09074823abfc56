"""Tracing: a span for each call and one for each batch. Only `export.py` imports opentelemetry."""
