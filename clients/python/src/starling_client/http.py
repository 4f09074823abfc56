"""What both clients share of HTTP: addresses, headers, and what httpx's exceptions mean."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import httpx

from starling_client.core import Failure, Kind, Send
from starling_client.wire import Answer

_CONNECT_S = 5.0  # a host that does not answer a connection by then is tried again
_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")  # of a header
_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def client_version() -> str:
    try:
        return version("starling-client")
    except PackageNotFoundError:  # imported from its folder
        return "unknown"


def address(url: str) -> str:
    """A server's address without a slash at its end; http where it names no scheme. Raises ValueError."""
    full = url if "://" in url else f"http://{url}"
    parts = urlsplit(full)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url: expected one like http://localhost:8000, got {url!r}")
    return full.rstrip("/")


def common_headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """What each request carries. Answers are not compressed: that costs more than it saves, for tensors nearby.

    Raises ValueError for what no header can hold, as a key with the end of its line. It is not shown.
    """
    common = {"user-agent": f"starling-client/{client_version()}", "accept-encoding": "identity"}
    if api_key is not None:
        common["x-api-key"] = api_key
    common |= {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in common.items():
        if not _VALUE.fullmatch(value):
            field = "api_key" if name == "x-api-key" else f"header {name}"
            raise ValueError(f"{field}: expected visible ASCII characters, without a space or a line end around them")
    return common


def timeout(send: Send) -> httpx.Timeout:
    return httpx.Timeout(send.timeout_s, connect=min(send.timeout_s, _CONNECT_S))


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def failure_of(exc: httpx.TransportError | httpx.DecodingError | TimeoutError) -> Failure:
    """What is known of a request that ended so."""
    if isinstance(exc, _NOTHING_SENT):
        return Failure(Kind.UNREACHABLE if any(map(_stays, _chain(exc))) else Kind.REFUSED, exc)
    if isinstance(exc, httpx.TimeoutException | TimeoutError):
        return Failure(Kind.TIMED_OUT, exc)
    return Failure(Kind.LOST, exc)


def _stays(exc: BaseException) -> bool:
    """Whether the next connection would fail alike. A name server that is away for a moment says EAI_AGAIN."""
    if isinstance(exc, socket.gaierror):
        return exc.errno != socket.EAI_AGAIN
    return isinstance(exc, ssl.SSLCertVerificationError)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """An exception and all that led to it."""
    waiting: list[BaseException] = [exc]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [before for before in (one.__cause__, one.__context__) if before is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
