"""Tasks of transformers models: text or images in, labels or vectors out, with the tensors of a model between."""
