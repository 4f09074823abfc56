"""`starling bench`: puts load on a running server and measures it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import ConfigError, as_config_error
from planner.commands.filled import filled

if TYPE_CHECKING:
    from loadtest.generator.plan import BenchPlan

_LOAD, _REQUESTS, _CLIENT, _OUTPUT = "Load", "Requests", "This client", "Output"
_ARRIVALS = "poisson, uniform, gamma:CV, steps:FxS,..., diurnal:PERIOD_S:AMPLITUDE, bursty:ON_S:OFF_S, trace:FILE."
_LENGTHS = (
    "Of variable axes: N, uniform:LOW:HIGH, lognormal:MEAN:SD:MAX, as lognormal:14:4:128 for mean 14, standard "
    "deviation 4, from 1 to 128, or lognormal:MEDIAN:SIGMA:LOW:HIGH."
)


def _option(panel: str, flag: str, text: str, **more: Any) -> Any:
    return typer.Option(flag, help=text.replace("[", "\\["), rich_help_panel=panel, **more)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `starling bench`."""

    url: Annotated[str, typer.Argument(help="The server: http://host:port; any that speaks V2.", show_default=False)]
    model: Annotated[str, _option(_LOAD, "--model", "The model's name.", show_default=False)] = ""
    rate: Annotated[float | None, _option(_LOAD, "--rate", "Open loop: requests per second.")] = None
    concurrency: Annotated[int | None, _option(_LOAD, "--concurrency", "Closed loop: requests in flight.")] = None
    find_peak: Annotated[bool, _option(_LOAD, "--find-peak", "Search for the largest rate that keeps --slo-ms.")] = (
        False
    )
    slo_ms: Annotated[float, _option(_LOAD, "--slo-ms", "The objective: largest 99th percentile of the latency.")] = 200
    arrivals: Annotated[str, _option(_LOAD, "--arrivals", _ARRIVALS)] = "poisson"
    duration: Annotated[float, _option(_LOAD, "--duration", "Seconds of each run.")] = 10
    repeats: Annotated[int, _option(_LOAD, "--repeats", "Runs; run k has the seed plus k.")] = 3
    warmup: Annotated[float, _option(_LOAD, "--warmup", "Seconds of load before the first run, not counted.")] = 2
    seed: Annotated[int, _option(_LOAD, "--seed", "Seed of all random numbers.")] = 0
    payload: Annotated[str, _option(_REQUESTS, "--payload", "json or binary.")] = "json"
    rows: Annotated[int, _option(_REQUESTS, "--rows", "Rows of each request.")] = 1
    lengths: Annotated[str, _option(_REQUESTS, "--lengths", _LENGTHS)] = "16"
    shape: Annotated[
        list[str] | None,
        _option(_REQUESTS, "--shape", "NAME:d,d: the shape of one row of an input. [from the metadata]"),
    ] = None
    data: Annotated[
        Path | None,
        _option(
            _REQUESTS, "--data", "V2 requests (.json: one or a list), or a file for /predict, as 3.jpg. [random data]"
        ),
    ] = None
    deadline_ms: Annotated[
        float | None,
        _option(
            _REQUESTS,
            "--deadline-ms",
            "Count the answers within this deadline, which is also sent (V2 timeout). [none]",
        ),
    ] = None
    header: Annotated[
        list[str] | None, _option(_REQUESTS, "--header", "NAME: VALUE, sent with each request, as an API key.")
    ] = None
    check: Annotated[
        str,
        _option(_REQUESTS, "--check", "values: equal requests have equal answers; shapes: only outputs and shapes."),
    ] = "values"
    connections: Annotated[int, _option(_CLIENT, "--connections", "The most open connections.")] = 256
    timeout: Annotated[float, _option(_CLIENT, "--timeout", "Seconds after which a request has failed.")] = 10
    max_lag_ms: Annotated[
        float | None,
        _option(_CLIENT, "--max-lag-ms", "Accept a client that is up to this late. [1, or a tenth of the latency]"),
    ] = None
    as_json: Annotated[bool, _option(_OUTPUT, "--json", "Print one JSON object.")] = False


@filled
def bench(given: BenchOptions) -> None:
    """Measure a model of a running server: latencies from the intended instant of each request.

    Exit status 1 if there was no right answer, 2 for a bad option, or if the first request was not answered rightly,
    3 if this client could not keep up: it prints what it measured, and how much of the latency is its own. Ctrl-C
    prints the results of the complete runs.
    """
    loops = [given.rate is not None or given.arrivals.startswith("trace:"), given.concurrency is not None]
    if [*loops, given.find_peak].count(True) != 1:
        raise ConfigError("rate: expected one of --rate, --concurrency and --find-peak")
    if not 0 < given.slo_ms < 1e6:
        raise ConfigError(f"slo_ms: expected above 0 and below 1e6, got {given.slo_ms:g}")
    with as_config_error():
        if status := _measure_and_print(_plan(given), given.slo_ms if given.find_peak else None, given.as_json):
            sys.exit(status)


def _plan(given: BenchOptions) -> BenchPlan:
    """Raises ValueError for a wrong option."""
    from loadtest.generator.plan import BenchPlan

    return BenchPlan(
        url=given.url, model=given.model, rate=given.rate, concurrency=given.concurrency, arrivals=given.arrivals,
        duration_s=given.duration, warmup_s=given.warmup, repeats=given.repeats, seed=given.seed,
        payload=given.payload, rows=given.rows, lengths=given.lengths, shapes=tuple(given.shape or ()),
        data=given.data, deadline_ms=given.deadline_ms, connections=given.connections, timeout_s=given.timeout,
        headers=tuple(given.header or ()), check=given.check, max_lag_ms=given.max_lag_ms,
    )  # fmt: skip


def _measure_and_print(plan: BenchPlan, slo_ms: float | None, as_json: bool) -> int:
    """Measure, or with `slo_ms` find the peak, and print the result. Returns the exit status."""
    from loadtest.generator import report
    from loadtest.generator.peak import Try, find_peak
    from loadtest.generator.run import Interrupted, Lagging, in_loop, measure

    tries: list[Try] = []

    def on_try(one: Try) -> None:
        tries.append(one)
        print(report.tried(one), file=sys.stderr, flush=True)

    doubt: Lagging | Interrupted | None = None
    try:
        if slo_ms is not None:
            result = in_loop(find_peak(plan, slo_ms, on_try)).result
        else:
            # No bar: to draw it takes 2 ms, in which requests would be late.
            if sys.stderr.isatty():
                print(f"for {plan.warmup_s + plan.repeats * plan.duration_s:.0f} s", file=sys.stderr, flush=True)
            result = in_loop(measure(plan))
    except (Lagging, Interrupted) as exc:
        doubt, result = exc, exc.result
    if result is not None:
        found = report.as_json(result, slo_ms, tries, "" if doubt is None else str(doubt))
        print(json.dumps(found, indent=2) if as_json else report.table(result, slo_ms))
    if doubt is not None:
        print(f"starling: {doubt}", file=sys.stderr)
        return doubt.status
    return 0 if result is not None and result.completed else 1
