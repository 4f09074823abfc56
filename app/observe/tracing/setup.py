"""Decides whether tracing is on, and makes the tracer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.errors import ConfigError, as_config_error, not_installed

if TYPE_CHECKING:
    from .spans import Tracer

log = logging.getLogger("starling.tracing")

PATH = "/v1/traces"  # of OTLP/HTTP, appended to the address of a collector
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OFF = {("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")}
_SAMPLER, _ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_INSTALL = str(not_installed("opentelemetry", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"))


def tracer_of(
    endpoint: str | None, version: str, environment: Mapping[str, str], *, https: bool = False
) -> Tracer | None:
    """The tracer, if `endpoint` or OpenTelemetry's variables name a collector; else None.

    `https`: the server uses TLS. Raises ConfigError for a wrong address or share, or if the optional packages are
    missing. If only a variable names the collector, missing packages are a log line instead: a cluster may
    set the variable for all of its processes.
    """
    named = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if endpoint is None and (named is None or any(environment.get(one, "").lower() == off for one, off in _OFF)):
        return None
    url = None if endpoint is None else collector(endpoint)
    try:
        from .spans import tracer_to
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        if endpoint is not None:
            raise ConfigError(f"otlp_endpoint: {_INSTALL}") from None
    else:
        with as_config_error("OpenTelemetry's variables"):
            return tracer_to(url, version, share(environment), "https" if https else "http")
    log.error("%s is set, but %s", named, _INSTALL)
    return None


def share(environment: Mapping[str, str]) -> float:
    """The share of the requests that are traced if their clients do not decide, by OpenTelemetry's variables.

    A client that decides is always followed, so a sampler means the same with and without `parentbased_`. Raises
    ConfigError if the share is none.
    """
    name = environment.get(_SAMPLER, "").lower().removeprefix("parentbased_") or "always_on"
    if name == "traceidratio":
        given = environment.get(_ARGUMENT) or "1"
        with suppress(ValueError):
            if 0 <= (ratio := float(given)) <= 1:
                return ratio
        raise ConfigError(f"{_ARGUMENT}: expected a number from 0 to 1, got {given!r}")
    if name not in ("always_on", "always_off"):
        log.warning(
            "%s: expected always_on, always_off or traceidratio, got %r; all requests are traced", _SAMPLER, name
        )
    return 0.0 if name == "always_off" else 1.0


def collector(endpoint: str) -> str:
    """The URL for spans at a collector's address. Raises ConfigError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"otlp_endpoint: expected a URL such as http://127.0.0.1:4318, got {endpoint!r}")
    return endpoint if parts.path.endswith(PATH) else endpoint.rstrip("/") + PATH
