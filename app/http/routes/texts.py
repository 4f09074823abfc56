"""The documentation of the routes of texts, whose bodies name the model. They are served in front of FastAPI."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from app.http.routes.bodies import EmbeddingsRequest, EmbeddingsResponse, RankedText, RerankRequest, RerankResponse
from app.http.routes.openapi import CALLS, asked_in_query, json_media, of_calls, request_body, unreachable

_EMBEDDED = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
    "model": "vectors",
    "usage": {"prompt_tokens": 6, "total_tokens": 6},
}

router = APIRouter(tags=["inference"], dependencies=[*CALLS, Depends(asked_in_query)])


router.post(
    "/v1/embeddings",
    name="embeddings",
    summary="Vectors of texts, OpenAI's way",
    description="For models of the tasks feature-extraction and sentence-similarity, and any other that makes one "
    "vector of one input of bytes. Errors have the body that OpenAI's clients read.",
    responses=of_calls(EmbeddingsResponse, "The vectors, in the order of the texts.", example=_EMBEDDED, openai=True),
    openapi_extra=request_body(
        {
            "application/json": json_media(
                EmbeddingsRequest,
                {
                    "one text": {"model": "vectors", "input": "what a fine day"},
                    "several, as base64": {
                        "model": "vectors",
                        "input": ["what a fine day", "it rains"],
                        "encoding_format": "base64",
                    },
                },
            )
        }
    ),
)(unreachable)


_DOCUMENTS = {"model": "ranker", "query": "a fine day", "documents": ["it rains", "the sun shines"]}
_RANKED = {
    "model": "ranker",
    "results": [{"index": 1, "relevance_score": 0.98}, {"index": 0, "relevance_score": 0.02}],
    "usage": {"total_tokens": 18},
}
_RERANK: dict[str, Any] = {
    "summary": "Rank texts for a query",
    "description": "For models of the task rerank. A body with documents is Cohere's; one with texts is that of Text "
    "Embeddings Inference, whose answer is a list.",
    "openapi_extra": request_body(
        {
            "application/json": json_media(
                RerankRequest,
                {
                    "documents": _DOCUMENTS,
                    "the best with its text": {**_DOCUMENTS, "top_n": 1, "return_documents": True},
                    "texts": {"model": "ranker", "query": "a fine day", "texts": ["it rains", "the sun shines"]},
                },
            )
        }
    ),
}


for path, name, answer, openai in (
    ("/v1/rerank", "rerank_v1", RerankResponse, True),
    ("/v2/rerank", "rerank_v2", RerankResponse, False),
    ("/rerank", "rerank", RerankResponse | list[RankedText], False),
):
    told = of_calls(answer, "The best first.", example=_RANKED, openai=openai)
    router.post(path, name=name, responses=told, **_RERANK)(unreachable)
