"""What clients of each task send and get, as tensors of the V2 protocol. Nothing here needs transformers.

| task | input | outputs, of one row |
|---|---|---|
| text-classification | text BYTES [] | labels BYTES [k], scores FP32 [k], the best first |
| token-classification | text BYTES [] | pieces, labels BYTES [n], scores FP32 [n], starts, ends INT64 [n] |
| feature-extraction | text BYTES [] | embedding FP32 [size] |
| image-classification | image BYTES [] | labels BYTES [k], scores FP32 [k], the best first |
"""

from __future__ import annotations

from app.contract import UNBOUNDED, TensorSpec

TEXT = TensorSpec("text", "BYTES", (), (), ())
IMAGE = TensorSpec("image", "BYTES", (), (), ())
#: The axis of what token-classification answers: as long as the row has tokens, special ones apart.
PIECES = "pieces"

_Specs = tuple[TensorSpec, ...]


def labels_and_scores(count: int) -> _Specs:
    """`count` labels and their scores."""
    return _vector("labels", "BYTES", count), _vector("scores", "FP32", count)


def embedding(size: int) -> _Specs:
    return (_vector("embedding", "FP32", size),)


def tokens() -> _Specs:
    """One value for each token of the text; `starts` and `ends` count its characters."""
    kinds = {"pieces": "BYTES", "labels": "BYTES", "scores": "FP32", "starts": "INT64", "ends": "INT64"}
    return tuple(_along(name, datatype, PIECES) for name, datatype in kinds.items())


def listed(task: str) -> tuple[_Specs, _Specs]:
    """Inputs and outputs of a task before its model has been loaded: what depends on the model is a variable axis."""
    if task == "token-classification":
        return (TEXT,), tokens()
    if task == "feature-extraction":
        return (TEXT,), (_along("embedding", "FP32", "size"),)
    answers = _along("labels", "BYTES", "top"), _along("scores", "FP32", "top")
    return (IMAGE if task == "image-classification" else TEXT,), answers


def _vector(name: str, datatype: str, length: int) -> TensorSpec:
    return TensorSpec(name, datatype, (length,), ("",), (length,))


def _along(name: str, datatype: str, axis: str) -> TensorSpec:
    return TensorSpec(name, datatype, (-1,), (axis,), (UNBOUNDED,))
