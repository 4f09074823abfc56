"""The inference routes: path to codec, model and version; and the options in the query string and the class header.

V1 and the friendly route take a deadline and a priority from the query, `?timeout_ms=50&priority=1`, because their
bodies have no place for them. V2 bodies have both, and V2 clients send queries of their own, so V2 ignores the query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.routing import compile_path

from app.contract import CLASSES, Klass
from app.errors import BadRequest
from app.http.codecs.base import Codec
from app.http.codecs.completions import ChatCompletions, Completions
from app.http.codecs.embeddings import Embeddings
from app.http.codecs.generate import Generate, GenerateStream
from app.http.codecs.rerank import Rerank
from app.http.codecs.rows import V1, Friendly
from app.http.codecs.text_codec import TextCodec
from app.http.codecs.v2 import V2
from app.http.codecs.v2_decode import MAX_PRIORITY, MAX_TIMEOUT_US
from app.http.paths import has_openai_form
from app.values.tensors import shown

#: The codec of each path. All of these also exist with a version after the model.
_BY_PATH: dict[str, Codec] = {
    "/v2/models/{model}/infer": V2(),
    "/v2/models/{model}/generate": Generate(),
    "/v2/models/{model}/generate_stream": GenerateStream(),
    "/v1/models/{model}:predict": V1(),
    "/predict/{model}": Friendly(),
}
#: The codec of each path whose body names the model.
_BY_BODY: dict[str, TextCodec] = {
    "/v1/completions": Completions(), "/v1/chat/completions": ChatCompletions(), "/v1/embeddings": Embeddings(),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), Rerank()),
}  # fmt: skip
X_CLASS = b"x-class"
CLASS_BY_NAME = {name.encode(): klass for name, klass in CLASSES.items()}
_PARAMETERS = ("timeout_ms", "total_timeout_ms", "priority")
_LONGEST_QUERY = 512  # bytes: more than all parameters need. 64 KiB would take the event loop 50 ms
_DECIMAL = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")  # no sign, no exponent, no "nan"
_INTEGER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Route:
    """The meaning of a request's target. `query`: as sent; "" if the protocol ignores it.

    `model`: "" if the body names it. `openai`: error bodies have OpenAI's form.
    """

    codec: Codec
    model: str
    version: str | None
    template: str  # the path, with the names of model and version left out
    query: bytes = b""
    openai: bool = False


_PATTERNS = [
    (compile_path(template)[0], template, codec)
    for path, codec in _BY_PATH.items()
    for template in (path, path.replace("{model}", "{model}/versions/{version}"))
]


def find_route(path: str, query: bytes) -> Route | None:
    """The route of a path without an ingress's prefix; None if it is not an inference route."""
    if path in _BY_BODY:
        return Route(_BY_BODY[path], "", None, path, query, has_openai_form(path))
    for pattern, template, codec in _PATTERNS:
        if (found := pattern.fullmatch(path)) is not None:
            names = found.groupdict()
            read = b"" if path.startswith("/v2/") else query
            return Route(codec, names["model"], names.get("version"), template, read)
    return None


#: The priority and both timeouts in microseconds of a query string, as in `DecodedCall`.
QueryOptions = tuple[int, int | None, int | None]


@lru_cache(maxsize=256)
def parse_query(query: bytes) -> QueryOptions:
    """Parse a query string (what follows the "?"). Raises BadRequest that names the parameter."""
    given: dict[str, str] = {}
    for name, value in parse_qsl(query[:_LONGEST_QUERY].decode("latin-1"), keep_blank_values=True):
        if name not in _PARAMETERS:
            raise BadRequest(f"query: expected one of {', '.join(_PARAMETERS)}, got {shown(name)}")
        if name in given:
            raise BadRequest(f"query: {name} is given twice")
        given[name] = value
    if len(query) > _LONGEST_QUERY:
        raise BadRequest(f"query: expected at most {_LONGEST_QUERY} bytes, got {len(query)}")
    priority = _priority(given.get("priority", "0"))
    timeout_us, total_timeout_us = (_timeout_us(name, given.get(name, "0")) for name in _PARAMETERS[:2])
    return priority, timeout_us, total_timeout_us


def _priority(text: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > MAX_PRIORITY:
        raise BadRequest(f"query: priority: expected an integer from 0 to {MAX_PRIORITY}, got {shown(text)}")
    return int(text)


def _timeout_us(name: str, text: str) -> int | None:
    """Microseconds, at least 1; None for 0, which means the model's default."""
    if not _DECIMAL.fullmatch(text) or float(text) * 1000 > MAX_TIMEOUT_US:
        top = MAX_TIMEOUT_US // 1000
        raise BadRequest(f"query: {name}: expected milliseconds from 0 to {top}, got {shown(text)}")
    return max(1, round(float(text) * 1000)) if float(text) else None


def parse_class(given: bytes) -> Klass:
    """The class that the header X-Class names. Raises BadRequest for one that does not exist."""
    klass = CLASS_BY_NAME.get(given)
    if klass is None:
        raise BadRequest(f"X-Class: expected {' or '.join(CLASSES)}, got {given[:40].decode('latin-1')!r}")
    return klass
