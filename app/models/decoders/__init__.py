"""Decoders of transformers as cells: a cache with one place a row, and one step for rows at any positions."""
