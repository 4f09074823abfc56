"""Decoders of transformers, run step by step: a cache with a place for each row, and steps of rows at any positions."""
