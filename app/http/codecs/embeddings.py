"""`POST /v1/embeddings`, compatible with OpenAI's clients. One text is one row."""

from __future__ import annotations

import base64

import numpy as np
import orjson

from app.contract import Answer, Array, Front, ModelInfo, Served
from app.errors import bad_field
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import DecodedCall
from app.http.codecs.text_codec import TextCodec, tokens_of
from app.values.tensors import shown, to_json

_FORMATS = ("float", "base64")
_LEAST_NORM = 1e-12


class Embeddings(TextCodec):
    """Supports every model with one BYTES input and one vector of floats as output.

    NaN and infinities are null in an answer of floats, and themselves in one of base64.
    """

    kind = "a model that makes a vector of a text"
    sent = "input"
    fields = frozenset({"model", "input", "encoding_format", "dimensions", "normalize"})

    def front(self, served: Served) -> Front | None:
        front = served.model.front
        return None if front is None else front.embedder or front

    def supports(self, served: Served) -> bool:
        info = self._face(served)
        inputs, outputs = info.client_inputs, info.outputs
        return (
            [(spec.datatype, spec.fixed, spec.count) for spec in inputs] == [("BYTES", True, 1)]
            and [(spec.fixed, len(spec.shape)) for spec in outputs] == [(True, 1)]
            and outputs[0].datatype in ("FP16", "FP32", "FP64")
        )

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        encoding, dimensions, normal = map(self.body.get, ("encoding_format", "dimensions", "normalize"))
        if encoding not in (None, *_FORMATS):
            raise bad_field("encoding_format", f"expected {' or '.join(_FORMATS)}, got {shown(encoding)}")
        if normal is not None and normal is not True:
            raise bad_field("normalize", "expected true: what a model has brought to length 1 cannot be brought back")
        call = super().decode(served, headers, body, limits)
        size = self._face(served).outputs[0].shape[0]
        if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= size):
            raise bad_field("dimensions", f"expected 1 to {size}, as the model's vectors have, got {shown(dimensions)}")
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        tokens = tokens_of(call)
        (vectors,) = answer.outputs
        size = self.body.get("dimensions") or (vectors.shape[1] if self.body.get("normalize") else None)
        given = to_json(_cut(vectors, size), "embedding")
        if self.body.get("encoding_format") == "base64":
            given = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in given]
        data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(given)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        found = {"object": "list", "data": data, "model": served.info.name, "usage": usage}
        return orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY), None

    def _face(self, served: Served) -> ModelInfo:
        front = self.front(served)
        return served.info if front is None else front.client_info(served.model.info)


def _cut(vectors: Array, dimensions: int | None) -> Array:
    """The first `dimensions` values of each vector, scaled to length 1 again; None: the vectors unchanged."""
    vectors = vectors.astype(np.float32, copy=False)
    if dimensions is not None:
        vectors = vectors[:, :dimensions]
        with np.errstate(invalid="ignore"):  # a vector may hold infinities
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=_LEAST_NORM)
    return vectors
