"""What to call instead of routes of other servers that this one lacks; and which paths have errors in OpenAI's form."""

from __future__ import annotations

#: What to call, with the beginnings of paths in whose place. OpenAI's newer APIs, TEI, TGI, vLLM, Cohere, Ollama,
#: Anthropic.
_BEGINNINGS = {
    "POST /v1/chat/completions": "/v1/responses /v1/messages /chat/completions /api/chat",
    "POST /v1/completions with the model in the body": "/v1/engines",
    "POST /v1/completions": "/completions /api/generate",
    "POST /v1/embeddings": "/embeddings /embed /v1/embed /v2/embed /pooling /api/embed",
    "GET /v1/models": "/models",
    "POST /predict/{model} of a model whose task is sentence-similarity": "/similarity",
    "POST /v1/rerank": "/score /v1/score /v1/ranking",
    "POST /predict/{model}": "/classify /v1/classify /invocations /predict /predictions",
    "POST /predict/{model} of a classifier": "/v1/moderations",
    "POST /predict/{model} of a model of images": "/v1/images",
    "POST /predict/{model} of a model of audio": "/v1/audio",
    "POST /v2/models/{model}/generate_stream": "/generate_stream",
    "POST /v2/models/{model}/generate": "/generate",
    "GET /v2": "/info",
}
_INSTEAD = {begin: route for route, beginnings in _BEGINNINGS.items() for begin in beginnings.split()}


def instead_of(path: str, known: frozenset[str]) -> str:
    """What to call in place of a path that does not exist; "" if nothing is known. `known`: routes without a model."""
    plain = path.rstrip("/")
    if plain in known and plain != path:
        return f"POST {plain}"
    found = [begin for begin in _INSTEAD if plain == begin or plain.startswith(f"{begin}/")]
    if plain == "":
        return "POST /v1/embeddings, /v1/rerank or /predict/{model}"
    return _INSTEAD[max(found, key=len)] if found else ""


def has_openai_form(path: str) -> bool:
    """Whether errors of this path have OpenAI's form: all of /v1, but what KServe's V1 has there."""
    return path.startswith("/v1/") and not (path.startswith("/v1/models/") and (":" in path or "/versions/" in path))
