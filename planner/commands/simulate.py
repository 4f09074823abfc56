"""`starling simulate`: the server's own scheduler in virtual time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import as_config_error
from planner.commands.filled import filled
from planner.commands.options import BatchOption, JsonOption, LoadOption, ProfileOption, RateOption
from planner.commands.output import print_json, progress, tabulated

if TYPE_CHECKING:
    from planner.fleet import Setup

_COLUMNS = (
    ("policy", "policy", ""),
    ("load", "load", ".2f"),
    ("rate/s", "rate", ".1f"),
    ("replicas", "replicas", "d"),
    ("router", "router", ""),
    ("mean ms", "mean_ms", ".2f"),
    ("p50", "p50_ms", ".2f"),
    ("p99", "p99_ms", ".2f"),
    ("p99.9", "p999_ms", ".2f"),
    ("done/s", "throughput", ".1f"),
    ("dropped", "dropped", "d"),
    ("batch", "mean_batch", ".2f"),
    ("busy", "utilisation", ".1%"),
)


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of `starling simulate`."""

    profile: ProfileOption = ""
    policy: Annotated[str, typer.Option(help="When to form a batch; several as adaptive,window.")] = "adaptive"
    rate: RateOption = ""
    load: LoadOption = ""
    requests: Annotated[int, typer.Option(help="Requests to simulate.")] = 100_000
    seed: Annotated[int, typer.Option(help="Seed of all random numbers; the same seed gives the same run.")] = 0
    workers: Annotated[str, typer.Option(help="Capacities in rows, as 1,2,4. \\[one of the largest batch]")] = ""
    max_batch: BatchOption = 0
    arrivals: Annotated[
        str,
        typer.Option(
            help="poisson, uniform, gamma:CV, steps:FxS,..., diurnal:PERIOD_S:AMPLITUDE, bursty:ON_S:OFF_S, trace:FILE."
        ),
    ] = "poisson"
    service: Annotated[str, typer.Option(help="Batch times: deterministic, exponential, gamma:CV.")] = "deterministic"
    device: Annotated[
        str, typer.Option(help="serial: one unit at a time; shared: as the profile's concurrency. \\[by the workers]")
    ] = ""
    push_depth: Annotated[int, typer.Option(help="The most unfinished batches of a worker.")] = 1
    push_ahead_ms: Annotated[
        float, typer.Option(help="How long before the predicted end of a batch the next one may be handed over.")
    ] = 0
    launch_ms: Annotated[float, typer.Option(help="Milliseconds that the host needs to launch a batch.")] = 0
    lengths: Annotated[
        str,
        typer.Option(
            help="N, uniform:LOW:HIGH, lognormal:MEAN:SD:MAX, lognormal:MEDIAN:SIGMA:LOW:HIGH, column:N:FILE; as many "
            "steps in a cell."
        ),
    ] = ""
    prompts: Annotated[
        str, typer.Option(help="Of decoders: lengths of the prompts; --lengths are those of the generated texts.")
    ] = ""
    length_buckets: Annotated[str, typer.Option(help="Lengths up to which requests may share a batch, as 16,32.")] = ""
    objective: Annotated[
        str, typer.Option(help="Of adaptive: latency, the least mean; deadline, the most answers by their deadline.")
    ] = "latency"
    deadline_ms: Annotated[float, typer.Option(help="Deadline of each request. \\[none]", show_default=False)] = 0
    max_queue: Annotated[
        int | None,
        typer.Option(
            help="Requests that may wait per replica; more are refused. \\[32 x the largest batch, at least 1024]",
            show_default=False,
        ),
    ] = None
    max_delay_ms: Annotated[
        float, typer.Option(help="window, static, preferred: longest wait of the oldest request.")
    ] = 5
    replicas: Annotated[str, typer.Option(help="Replicas behind one router; several as 1,10,100.")] = "1"
    router: Annotated[
        str, typer.Option(help="random, round_robin, least_waiting, power_of_two; several as random,power_of_two.")
    ] = "random"
    processes: Annotated[
        int, typer.Option(min=0, help="Processes for random and round_robin. \\[one per core]", show_default=False)
    ] = 0
    as_json: JsonOption = False
    replay: Annotated[Path | None, typer.Option(help="Re-run what `serve --record` wrote, and nothing else.")] = None


@filled
def simulate(given: SimulateOptions) -> None:
    """Run the server's own scheduler in virtual time, on batch times from a profile.

    Several policies, loads, replicas or routers are run one after the other: a table, or with --json a list.
    """
    if given.replay is not None:
        _replay(given.replay, given.as_json)
        return
    with as_config_error():
        cells = _simulated(_setups(given), given.processes)
    if given.as_json:
        print_json(cells)
    else:
        print(table(cells))


def _setups(given: SimulateOptions) -> list[Setup]:
    """One for each policy, load, number of replicas and router. Raises ValueError, OSError for a wrong option."""
    from app.contract import Batching  # numpy is slow to import
    from planner import option_values
    from planner.fleet import Setup

    measured = option_values.profile(given.profile, given.max_batch)
    nanoseconds = option_values.nanoseconds
    capacities = tuple(option_values.counts("workers", given.workers)) if given.workers else ()
    queue = Batching(max_batch=measured.max_batch).max_queue if given.max_queue is None else given.max_queue
    buckets = given.length_buckets
    common = Setup(
        profile=measured,
        rate=1.0,
        requests=given.requests,
        seed=given.seed,
        arrivals=given.arrivals,
        service=given.service,
        workers=capacities,
        deadline_ns=nanoseconds("deadline_ms", given.deadline_ms) if given.deadline_ms else None,
        max_queue=queue,
        max_delay_ns=nanoseconds("max_delay_ms", given.max_delay_ms),
        objective=given.objective,
        push_depth=given.push_depth,
        push_ahead_ns=nanoseconds("push_ahead_ms", given.push_ahead_ms),
        launch_ns=nanoseconds("launch_ms", given.launch_ms),
        lengths=given.lengths,
        prompts=given.prompts,
        length_buckets=tuple(sorted(option_values.counts("length_buckets", buckets))) if buckets else (),
    )
    fleets = option_values.fleets(given.router, option_values.counts("replicas", given.replicas))
    setups = []
    for policy, (router, replicas) in product(option_values.names(given.policy), fleets):
        device = given.device or option_values.device(measured, capacities, policy)
        one = replace(common, policy=policy, router=router, replicas=replicas, device=device)
        own_rate = given.arrivals.startswith("trace:") and not (given.rate or given.load)
        rates = [None] if own_rate else option_values.rates(given.rate, given.load, common.peak * replicas)
        setups += [replace(one, rate=rate) for rate in rates]
    for setup in setups:
        setup.check()
    return setups


def _simulated(setups: Sequence[Setup], processes: int) -> list[dict[str, Any]]:
    """A cell for each, with a bar of the requests. `processes` 0: one per core."""
    from planner.fleet import run

    with progress("requests", total=sum(setup.requests for setup in setups)) as count:
        return [run(setup, processes or os.cpu_count() or 1, count) for setup in setups]


def _replay(path: Path, as_json: bool) -> None:
    """Exit status 1 at the first Step that differs, 0 if all are equal up to the end or to a hole in the record."""
    from planner.replay import replay

    with as_config_error("replay"), path.open(encoding="utf-8") as lines:
        result = replay(lines)
    if as_json:
        print(json.dumps({"equal": result.equal, "line": result.line, "hole": result.hole,
                          "expected": result.expected, "got": result.got}))  # fmt: skip
    elif result.same:
        hole = f" up to a hole of {result.hole} entries, where the record ends" if result.hole else ""
        print(f"{result.equal} steps, all equal{hole}")
    else:
        print(f"{path}:{result.line}: the first step that differs, after {result.equal} equal ones")
        print(f"  recorded {json.dumps(result.expected)}")
        print(f"  got      {json.dumps(result.got)}")
    if not result.same:
        sys.exit(1)


def table(cells: Sequence[dict[str, Any]]) -> str:
    """The cells as an aligned table. Columns without values are left out, and those about replicas if there is one.

    With several replicas a last line says how they were simulated: split, each by itself, or coupled, all together.
    """
    many = any(cell.get("replicas", 1) > 1 for cell in cells)
    shown = [
        column
        for column in _COLUMNS
        if any(cell.get(column[1]) is not None for cell in cells) and (many or column[1] not in ("replicas", "router"))
    ]
    text = tabulated(shown, cells)
    how = dict.fromkeys(f"{cell['router']} {cell['simulated']}" for cell in cells if "simulated" in cell)
    return "\n".join([*text, f"simulated: {'; '.join(how)}"] if how else text)
