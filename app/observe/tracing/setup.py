"""Whether there is tracing at all, and what belongs to it: a tracer for the event loop and a sender behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.errors import ConfigError, not_installed

from .tracer import Tracer

if TYPE_CHECKING:
    from .export import SpanSender

log = logging.getLogger("starling.tracing")

PATH = "/v1/traces"  # OTLP/HTTP's, behind the address of a collector
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED = "OTEL_SDK_DISABLED"
_INSTALL = str(not_installed("opentelemetry", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"))
_FLUSH_S = 3.0  # for spans that are left when the server stops; an orchestrator's patience is a few seconds longer


class Tracing:
    """A tracer, and what sends its records."""

    def __init__(self, sender: SpanSender, ratio: float) -> None:
        self._sender = sender
        self.tracer = Tracer(sender.offer, ratio)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end it sends what is left, within a limit."""
        try:
            yield
        finally:
            await asyncio.to_thread(self._sender.close, _FLUSH_S)


def open_tracing(
    endpoint: str | None, ratio: float, version: str, environment: Mapping[str, str], *, https: bool = False
) -> Tracing | None:
    """What traces, if `endpoint` or OpenTelemetry's variables name a collector; else None. `https`: what is served.

    Raises ConfigError for a wrong address, and where the extra is missing: if it is a variable that names the
    collector, which a cluster may set for whatever runs in it, that is one line in the log instead.
    """
    named = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if endpoint is None and (named is None or environment.get(_DISABLED, "").lower() == "true"):
        return None
    url = None if endpoint is None else collector(endpoint)
    sender = _sender(url, version, "https" if https else "http")
    if sender is not None:
        return Tracing(sender, ratio)
    if endpoint is not None:
        raise ConfigError(f"otlp_endpoint: {_INSTALL}")
    log.error("%s is set, but %s", named, _INSTALL)
    return None


def _sender(url: str | None, version: str, scheme: str) -> SpanSender | None:
    """None where the extra is not installed."""
    try:
        from .export import sender
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return None
    return sender(url, version, scheme)


def collector(endpoint: str) -> str:
    """Where spans are posted to, of a collector's address. Raises ConfigError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"otlp_endpoint: expected a URL such as http://127.0.0.1:4318, got {endpoint!r}")
    return endpoint if parts.path.endswith(PATH) else endpoint.rstrip("/") + PATH
