"""`POST /rerank`, `/v1/rerank` and `/v2/rerank`: ranks texts by relevance to a query. One text is one row.

A body with `documents` has Cohere's form, one with `texts` that of Text Embeddings Inference. The answer has the same
form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from app.contract import Answer, Served
from app.errors import bad_field
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import DecodedCall
from app.http.codecs.text_codec import TextCodec, texts_of, tokens_of, unexpected
from app.http.codecs.v2_decode import flag
from app.values.tensors import shown, to_json

_INPUTS = [(name, "BYTES", True, 1) for name in ("query", "document")]


class Rerank(TextCodec):
    """Supports models with the inputs query and document and the output score, as the task rerank has."""

    kind = "a model that ranks texts for a query"
    fields = frozenset({
        "model", "query", "documents", "texts", "top_n", "return_documents", "return_text", "raw_scores",
    })  # fmt: skip

    def supports(self, served: Served) -> bool:
        info = served.info
        inputs = [(spec.name, spec.datatype, spec.fixed, spec.count) for spec in info.client_inputs]
        return inputs == _INPUTS and info.outputs[0].name == "score" and info.outputs[0].count == 1

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        top = self.body.get("top_n")
        if top is not None and (type(top) is not int or top < 1):
            raise bad_field("top_n", f"expected a number of at least 1, got {shown(top)}")
        if self.body.get("texts") is not None and self.body.get("documents") is not None:
            raise bad_field("texts", "expected nothing beside documents")
        for name in ("raw_scores", "return_documents", "return_text"):
            flag(self.body, name, name)
        if self.body.get("raw_scores") and "raw_score" not in [spec.name for spec in served.info.outputs]:
            raise bad_field("raw_scores", f"expected false, since model {served.info.name!r} has no output raw_score")
        return super().decode(served, headers, body, limits)

    def columns(self, served: Served) -> list[list[str]]:
        query = self.body.get("query")
        if not isinstance(query, str):
            raise unexpected("query", "a text", query)
        documents = self._documents()
        return [[query] * len(documents), documents]

    def field_of(self, name: str, row: int | None) -> str:
        return name.replace("document", f"{self._field}[{row or 0}]")  # of both, as too long: query and documents[0]

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        name = "raw_score" if self.body.get("raw_scores") else "score"
        outputs = zip(served.info.outputs, answer.outputs, strict=True)
        scores = to_json(next(values.reshape(-1) for spec, values in outputs if spec.name == name), name)
        order = np.argsort(-scores, kind="stable")[: self.body.get("top_n")].tolist()
        is_tei = self._field == "texts"
        results: list[dict[str, Any]] = [
            {"index": row, "score" if is_tei else "relevance_score": scores[row]} for row in order
        ]
        if self.body.get("return_documents") or self.body.get("return_text"):
            texts = self._documents()
            for result in results:
                text = {"text": texts[result["index"]]}
                result |= text if is_tei else {"document": text}
        whole = {"model": served.info.name, "results": results, "usage": {"total_tokens": tokens_of(call)}}
        return orjson.dumps(results if is_tei else whole, option=orjson.OPT_SERIALIZE_NUMPY), None

    @property
    def _field(self) -> str:
        return "texts" if "texts" in self.body and self.body.get("documents") is None else "documents"

    def _documents(self) -> list[str]:
        value = self.body.get(self._field)
        if isinstance(value, list):  # Cohere's documents may be objects
            value = [one["text"] if isinstance(one, dict) and "text" in one else one for one in value]
        return texts_of(value, self._field)
