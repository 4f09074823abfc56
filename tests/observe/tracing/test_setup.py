"""What switches tracing on, and what is said where it cannot be."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from app.errors import ConfigError
from app.observe.tracing.setup import span_sender

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "app.observe.tracing.export"))]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *rest: Any) -> None:
            if name.partition(".")[0] == "opentelemetry":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


@pytest.mark.parametrize(
    "environment", [{}, {BASE: ""}, {BASE: "http://one:4318", "OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_SERVICE_NAME": "x"}]
)
def test_off(environment: dict[str, str]) -> None:
    assert span_sender(None, "0", environment) is None


@pytest.mark.parametrize(
    ("flag", "name", "host"),
    [(None, BASE, "one"), (None, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "one"), ("http://two:4318", BASE, "two")],
)
def test_a_flag_or_a_standard_variable_switches_it_on(
    flag: str | None, name: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://one:4318/v1/traces" if "TRACES" in name else "http://one:4318")
    sender = span_sender(flag, "0", {name: "http://one:4318"})
    assert sender is not None
    assert sender._processor.span_exporter._exporter._endpoint == f"http://{host}:4318/v1/traces"  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["one:4318", "", "grpc://one:4317", "http://"])
def test_no_url(given: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint: expected a URL"):
        span_sender(given, "0", {})


@pytest.mark.usefixtures("without_extra")
def test_the_extra_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"^otlp_endpoint: .*: pip install opentelemetry-sdk "):
        span_sender("http://one:4318", "0", {})
    assert span_sender(None, "0", {BASE: "http://one:4318"}) is None
    (record,) = caplog.records
    assert record.message.startswith(f"{BASE} is set, but opentelemetry is not installed")
