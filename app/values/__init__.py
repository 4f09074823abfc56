"""Converts values from clients and model owners into tensors, and checks them against the input's spec."""
