"""lstm: a text classifier's shape, for measurements with rows of very different lengths."""
