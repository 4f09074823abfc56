"""What one GPU does, block by block: see `__main__`."""
