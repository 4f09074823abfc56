"""Values of tensors as clients and owners of models write them: checked against what an input declares."""
