"""Decoders of transformers, run step by step: a cache with one place for each row, and steps of rows at any positions."""
