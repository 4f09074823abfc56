"""Decoders served step by step against the same weights served as whole batches of `generate`."""
