"""Turns exceptions into HTTP answers: `{"error": message}`, or OpenAI's form on the routes of OpenAI's API.

FastAPI's handlers and the inference path both call `error_parts`, so that all errors look the same.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from random import randrange

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.errors import BodyTimeout, DeadlineUnreachable, MethodNotAllowed, NotFound, StarlingError, as_starling_error
from app.http.answers import CLOSE, header_list
from app.http.paths import has_openai_form, strip_prefix

#: Statuses whose answers always carry Retry-After: 1 second, unless the error has its own hint.
_RETRIED = {429, 503}
_JSON = json.JSONEncoder(ensure_ascii=False)
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OF_MODEL = "parameters."  # what a model calls its parameters
METHODS = ("GET", "HEAD", "POST")  # of all routes together
_LONGEST_MESSAGE = 4000  # characters: a message may quote what a client sent, such as a path


def error_parts(exc: BaseException, openai: bool = False) -> tuple[int, bytes, bytes]:
    """Status, header lines and body of the answer to `exc`. `openai`: the body has OpenAI's form. Never raises."""
    error = as_starling_error(exc)
    status, message = error.status, error.message
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    # A text by itself is encoded in a tenth of the time that an object takes: a refusal must be cheap.
    told = _JSON.encode(_in_openai_form(error, message) if openai else message)
    # "replace": the stdlib's JSON parser lets lone surrogates through, and a message may quote them
    body = b'{"error": %s}' % told.encode("utf-8", "replace")
    head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
    if status == 401:
        head += b"www-authenticate: Bearer\r\n"  # RFC 9110, 15.5.2: a 401 names a way to authenticate
    if status in _RETRIED or error.retry_after_s is not None:
        head += b"retry-after: %d\r\n" % with_jitter(max(1, error.retry_after_s or 1))
    if isinstance(error, DeadlineUnreachable):  # the one 429 where a retry does not help
        head += b"x-error-code: %s\r\n" % error.code.encode()
    return status, head, body


def with_jitter(seconds: int) -> int:
    """Retry-After with up to a quarter (rounded up) added at random, so that refused clients do not return together."""
    return seconds + randrange((seconds + 3) // 4 + 1)


def _in_openai_form(error: StarlingError, message: str) -> dict[str, str | None]:
    other = "invalid_request_error" if error.status < 500 else "server_error"
    kind, param = _OPENAI_TYPES.get(error.status, other), error.param
    if message.startswith(_OF_MODEL):  # here they are fields of the body
        message = message.removeprefix(_OF_MODEL)
        param = message.partition(":")[0]
    return {"message": message, "type": kind, "param": param, "code": error.code}


def install_error_handlers(app: FastAPI, rejected: Counter[str]) -> None:
    """Answer every error in `app`, also the framework's, with `error_parts`. `rejected` counts errors by code.

    Starlette's outermost layer raises an unexpected exception again after the answer, so that the server logs it.
    """
    for kind in (StarlingError, HTTPException, Exception):
        app.add_exception_handler(kind, partial(_answer, rejected))


async def _answer(rejected: Counter[str], request: Request, exc: Exception) -> Response:
    path, allow = strip_prefix(request.scope.get("root_path", ""), request.scope["path"]), b""
    if isinstance(exc, HTTPException):  # the router's, which names neither path nor method
        if exc.status_code == MethodNotAllowed.status and ":" not in path:
            allow = b"allow: %s\r\n" % ", ".join(sorted((exc.headers or {})["Allow"].split(", "))).encode()
            exc = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}")
        elif exc.status_code in (MethodNotAllowed.status, NotFound.status):  # V1's `:explain`, which is no model's name
            exc = NotFound(f"no such route: {request.url.path}")
    status, head, body = error_parts(exc, has_openai_form(path))
    if status == BodyTimeout.status:  # the server waits no longer (RFC 9110, 15.5.9)
        head += CLOSE
    rejected[as_starling_error(exc).code] += 1
    response = Response(body, status)
    response.raw_headers = header_list(head + allow)
    return response
