"""encoder: a BERT encoder, for measurements with rows of different lengths."""
