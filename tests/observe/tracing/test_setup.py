"""What switches tracing on, and what is said where it cannot be."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from collected import Collected
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from app.errors import ConfigError
from app.observe.tracing.setup import share, tracer_of

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "app.observe.tracing.spans"))]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *rest: Any) -> None:
            if name.partition(".")[0] == "opentelemetry":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


@pytest.mark.parametrize(
    "environment",
    [
        {}, {BASE: ""}, {BASE: "http://one:4318", "OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_SERVICE_NAME": "x"},
        {BASE: "http://one:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)  # fmt: skip
def test_off(environment: dict[str, str]) -> None:
    assert tracer_of(None, "0", environment) is None


@pytest.mark.parametrize(
    ("flag", "name", "host"),
    [(None, BASE, "one"), (None, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "one"), ("http://two:4318", BASE, "two")],
)
def test_a_flag_or_a_standard_variable_switches_it_on(flag: str | None, name: str, host: str, monkeypatch) -> None:
    monkeypatch.setenv(name, "http://one:4318/v1/traces" if "TRACES" in name else "http://one:4318")
    sent_to: list[str] = []
    monkeypatch.setattr(OTLPSpanExporter, "shutdown", lambda self: sent_to.append(self._endpoint))
    tracer = tracer_of(flag, "0", {name: "http://one:4318"})
    assert tracer is not None
    tracer.close()
    assert sent_to == [f"http://{host}:4318/v1/traces"]


@pytest.mark.parametrize(
    ("variable", "value", "service"),
    [
        ("OTEL_SERVICE_NAME", "mine", "mine"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=ours,k=v", "ours"),
        ("X", "", "starling"),
    ],
)  # fmt: skip
def test_which_service_it_is(variable: str, value: str, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    collected = Collected()
    span = collected.tracer.begin({}, method="POST", path="/", route="/", model="m", request_id=b"1")
    span.end(None, "", 0, KeyError("x"), 500)
    shown = collected.one().resource.attributes
    assert (shown["service.name"], shown["service.version"]) == (service, "0")


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("", "0.5", 1), ("always_on", "", 1), ("parentbased_always_off", "0.5", 0), ("traceidratio", "", 1),
        ("TraceIdRatio", "0.25", 0.25), ("parentbased_traceidratio", "0", 0), ("jaeger_remote", "0.5", 1),
    ],
)  # fmt: skip
def test_the_share_is_that_of_opentelemetrys_variables(sampler: str, argument: str, expected: float, caplog) -> None:
    assert share({"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}) == expected
    assert ("got 'jaeger_remote'; all requests are traced" in caplog.text) == (sampler == "jaeger_remote")


@pytest.mark.parametrize("given", ["-0.1", "1.5", "nan", "all"])
def test_no_share(given: str) -> None:
    with pytest.raises(ConfigError, match=f"^OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got '{given}'$"):
        tracer_of("http://one:4318", "0", {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": given})


@pytest.mark.parametrize("given", ["one:4318", "", "grpc://one:4317", "http://"])
def test_no_url(given: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint: expected a URL"):
        tracer_of(given, "0", {})


def test_a_variable_that_the_sdk_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096")  # more than the default queue has
    with pytest.raises(ConfigError, match="OpenTelemetry's variables: max_export_batch_size must be"):
        tracer_of("http://one:4318", "0", {})


@pytest.mark.usefixtures("without_extra")
def test_the_extra_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"^otlp_endpoint: .*: pip install opentelemetry-sdk "):
        tracer_of("http://one:4318", "0", {})
    assert tracer_of(None, "0", {BASE: "http://one:4318"}) is None
    (record,) = caplog.records
    assert record.message.startswith(f"{BASE} is set, but opentelemetry is not installed")
