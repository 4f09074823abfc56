"""What paths mean: an ingress's prefix; what to call instead of routes that this server lacks; OpenAI's form of errors.

An ingress may strip its prefix (`--root-path`) from a path or leave it: both mean the same request. A redirect names
the path with the prefix but no scheme and host, so that the client keeps those that it used.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import Scope

from app.http.body import Headers

#: What to call, with the beginnings of paths in whose place. OpenAI's newer APIs, TEI, TGI, vLLM, Cohere, Ollama,
#: Anthropic.
_BEGINNINGS = {
    "POST /v1/chat/completions": "/v1/responses /v1/messages /v1/chat /v2/chat /chat/completions /api/chat",
    "POST /v1/completions with the model in the body": "/v1/engines",
    "POST /v1/completions": "/completions /api/generate",
    "POST /v1/embeddings": "/embeddings /embed /v1/embed /v2/embed /pooling /api/embed /api/embeddings",
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
    "GET /v2/health/ready or /v2/health/live": "/v2/health /v1/health /health",
    "GET /metrics": "/monitoring",
    "POST /v2/models/{model}/infer with binary tensors": "/v2/systemsharedmemory /v2/cudasharedmemory",
}
_INSTEAD = {begin: route for route, beginnings in _BEGINNINGS.items() for begin in beginnings.split()}


def instead_of(path: str) -> str:
    """What to call in place of a path that does not exist; "" if nothing is known."""
    plain = path.rstrip("/")
    found = [begin for begin in _INSTEAD if plain == begin or plain.startswith(f"{begin}/")]
    if plain == "":
        return "POST /v1/embeddings, /v1/rerank or /predict/{model}"
    return _INSTEAD[max(found, key=len)] if found else ""


def has_openai_form(path: str) -> bool:
    """Whether errors of this path have OpenAI's form: all of /v1, but what KServe's V1 has there."""
    return path.startswith("/v1/") and not (path.startswith("/v1/models/") and (":" in path or "/versions/" in path))


def strip_prefix(prefix: str, path: str) -> str:
    """The path without the prefix, if it has it. `prefix` has no trailing slash; "" means none."""
    if not prefix or not path.startswith(prefix):
        return path
    rest = path[len(prefix) :]
    return rest if rest.startswith("/") else path if rest else "/"


def scope_under_prefix(prefix: str, scope: Scope, path: str) -> Scope:
    """The scope of a request for `path`, as ASGI wants it: the whole path, and `root_path` for the prefix."""
    return {**scope, "root_path": prefix, "path": prefix + path} if prefix else scope


def path_redirect(status: int, headers: Headers) -> Headers:
    """The headers, with scheme and host removed from the location of a redirect."""
    if not 301 <= status <= 308 or status == 304:
        return headers
    return [(name, _path_of(value) if name == b"location" else value) for name, value in headers]


def _path_of(location: bytes) -> bytes:
    parts = urlsplit(location)
    if not parts.scheme and not parts.netloc:
        return location  # a path already, perhaps a relative one
    path = b"/" + parts.path.lstrip(b"/")  # a path that begins with // would name a host
    return path + (b"?" + parts.query if parts.query else b"")
