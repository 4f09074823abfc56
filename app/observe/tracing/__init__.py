"""Tracing: one span for each inference call. Only `spans.py` imports opentelemetry."""
