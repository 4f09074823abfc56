"""What to call instead of routes of other servers that this one lacks; and which paths have errors in OpenAI's form."""

from __future__ import annotations

#: Beginnings of paths, with the route to call. OpenAI's newer APIs, TEI, TGI, vLLM, Cohere, Ollama, Anthropic.
_INSTEAD = {
    "/v1/responses": "POST /v1/chat/completions",
    "/v1/messages": "POST /v1/chat/completions",
    "/v1/engines": "POST /v1/completions with the model in the body",
    "/chat/completions": "POST /v1/chat/completions",
    "/completions": "POST /v1/completions",
    "/embeddings": "POST /v1/embeddings",
    "/models": "GET /v1/models",
    "/embed": "POST /v1/embeddings",
    "/v1/embed": "POST /v1/embeddings",
    "/v2/embed": "POST /v1/embeddings",
    "/pooling": "POST /v1/embeddings",
    "/similarity": "POST /predict/{model} of a model whose task is sentence-similarity",
    "/score": "POST /v1/rerank",
    "/v1/score": "POST /v1/rerank",
    "/v1/ranking": "POST /v1/rerank",
    "/classify": "POST /predict/{model}",
    "/v1/classify": "POST /predict/{model}",
    "/v1/moderations": "POST /predict/{model} of a classifier",
    "/v1/images": "POST /predict/{model} of a model of images",
    "/v1/audio": "POST /predict/{model} of a model of audio",
    "/generate_stream": "POST /v2/models/{model}/generate_stream",
    "/generate": "POST /v2/models/{model}/generate",
    "/api/chat": "POST /v1/chat/completions",
    "/api/generate": "POST /v1/completions",
    "/api/embed": "POST /v1/embeddings",
    "/invocations": "POST /predict/{model}",
    "/predict": "POST /predict/{model}",
    "/predictions": "POST /predict/{model}",
    "/info": "GET /v2",
}


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
