"""mlp: three dense layers, for measurements."""
