"""`starling size`: the replicas and flags that a rate needs, from a model's profile and the simulator."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.errors import ConfigError, as_config_error
from app.machine import cpu_cores
from planner.commands.filled import filled
from planner.commands.options import (
    DeviceOption,
    JsonOption,
    ModelsOption,
    PrecisionOption,
    ProfileDirOption,
    find_model,
    served,
)
from planner.commands.output import print_json, progress
from planner.commands.size_profiles import (
    FORMATS,
    HttpCost,
    SizedModel,
    ToMeasure,
    from_file,
    http_cost,
    stored,
)
from planner.commands.size_report import Goal, Report, SizingResult

if TYPE_CHECKING:
    from app.contract import ModelSource
    from app.scheduler.estimates.profile import Profile
    from planner.fleet import Setup
    from planner.sizing import Runs

_MS = 1e6
_GPU_AHEAD_NS = 300_000  # the server's default of push_ahead on a GPU
Router = Literal["random", "round_robin"]  # routers that ignore the replicas' state, as most load balancers do
_STEADY = 0.005  # a smaller coefficient of variation changes no figure


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """The options of `starling size`."""

    rate: Annotated[float, typer.Option(help="Requests per second, of all replicas together; of one row each.")]
    p99_ms: Annotated[float, typer.Option(help="99 % of the requests must be answered within it.")]
    model: Annotated[
        str,
        typer.Option(
            help="The model's name, its folder or file, or NAME=SOURCE, as serve takes. \\[the only one there is]"
        ),
    ] = ""
    models: ModelsOption = "demo"
    profile: Annotated[
        str, typer.Option(help="A profile's file, or linear:A+Bb, in place of the stored one of --model.")
    ] = ""
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the model and its HTTP cost first, on this machine.")
    ] = False
    budget_s: Annotated[float, typer.Option(help="--measure: seconds for the profile.")] = 60
    format: Annotated[
        str,
        typer.Option(help="Requests: json, binary or file. \\[the last measured, or json]"),
    ] = ""
    data: Annotated[
        Path | None,
        typer.Option(help="--measure: requests as users send them, as of `starling bench`. \\[made up]"),
    ] = None
    headroom: Annotated[float, typer.Option(help="Per cent of the rate that must fit on top.")] = 20
    http_us: Annotated[
        float | None,
        typer.Option(help="CPU time of the event loop for a request, microseconds. \\[as measured, or assumed]"),
    ] = None
    arrivals: Annotated[str, typer.Option(help="As of `starling simulate`: poisson, uniform, ...")] = "poisson"
    service: Annotated[
        str, typer.Option(help="Batch times: deterministic, exponential, gamma:CV. \\[as the profile's noise]")
    ] = ""
    lengths: Annotated[str, typer.Option(help="Lengths of the requests, as of `starling simulate`.")] = ""
    router: Annotated[Router, typer.Option(help="The router before the replicas.")] = "random"
    policy: Annotated[str, typer.Option(envvar="STARLING_POLICY", help="When to form a batch. \\[the model's]")] = ""
    device: DeviceOption = "auto"
    precision: PrecisionOption = "fp32"
    profile_dir: ProfileDirOption = None
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Workers of each replica, with the profile's threads.")
    ] = 1
    max_replicas: Annotated[int, typer.Option(min=1, help="The most replicas to consider.")] = 1000
    requests: Annotated[int, typer.Option(min=100, help="Requests of each simulated run, of which there are 8.")] = (
        10_000
    )
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run; each further run has the next one.")] = 0
    as_json: JsonOption = False


@filled
def size(context: typer.Context, given: SizeOptions) -> None:
    """The replicas that a rate needs, their flags, and what one replica less would do.

    Simulates the model's own scheduler on its stored profile (`starling profile`), with the event loop and the threads
    that decode, behind a router that does not look at the replicas. Exit status 1 if no number of replicas is enough.
    """
    from planner.sizing import runs_in_processes

    _check(given)
    goal = Goal(given.rate, given.p99_ms * _MS, given.headroom / 100, given.max_replicas)
    with as_config_error():
        subject, http = _measured(given, context)
        setup = _setup(given, subject, http)
        with progress("simulating") as count, runs_in_processes(cpu_cores(), partial(count, 1)) as runs:
            found = _sized(setup, goal, runs, http_assumed=http.source == "assumed")
    report = Report(goal, subject, http, found, given.policy)
    if given.as_json:
        print_json([report.as_dict()])
    else:
        print(report.as_text())
    if found.replicas is None:
        sys.exit(1)


def _check(given: SizeOptions) -> None:
    """Raise ConfigError that names a wrong option."""
    for name, value in (("rate", given.rate), ("p99-ms", given.p99_ms)):
        if not 0 < value < 1e9:
            raise ConfigError(f"{name}: expected above 0 and below 1e9, got {value:g}")
    if not 0 <= given.headroom <= 1000:
        raise ConfigError(f"headroom: expected per cent from 0 to 1000, got {given.headroom:g}")
    if given.http_us is not None and not 0 <= given.http_us < 1e9:
        raise ConfigError(f"http-us: expected at least 0 and below 1e9, got {given.http_us:g}")
    if given.format not in ("", *FORMATS):
        raise ConfigError(f"format: expected {', '.join(FORMATS)}, got {given.format!r}")
    if given.data is not None and not given.measure:
        raise ConfigError("data: it is only sent with --measure")


def _measured(given: SizeOptions, context: typer.Context) -> tuple[SizedModel, HttpCost]:
    """The model with its profile, and what a request of it costs HTTP; measured first with --measure."""
    if given.profile:
        subject = from_file(given.profile)
    else:
        asked = ToMeasure(given.budget_s, given.format, given.data) if given.measure else None
        found, words = _found(given, context)
        subject = stored(found, words, given.device, given.precision, given.profile_dir, asked)
    http = http_cost(subject.profile, given.format)
    if given.http_us is not None:
        http = replace(http, costs=replace(http.costs, call_ns=round(given.http_us * 1e3)), source="given")
    return subject, http


def _found(given: SizeOptions, context: typer.Context) -> tuple[tuple[ModelSource, str], list[str]]:
    """The model with its place, and the words by which `starling profile` finds it. Raises ConfigError."""
    sourced = "=" in given.model and not Path(given.model).exists()  # NAME=SOURCE
    name = given.model.partition("=")[0] if sourced else given.model
    extra = [given.model] if sourced else os.environ.get("STARLING_MODEL", "").split()
    known = served(context, given.models, extra)
    names = [text.partition("=")[0] for text in extra] or list(known.repository.scan())
    if not (name or len(names) == 1):
        raise ConfigError(f"model: expected --model, one of {', '.join(names)}" if names else "models: there is none")
    name = name or names[0]
    words = [name, *(["--models", given.models] if given.models != "demo" else [])]
    return find_model(context, name, known), words + [word for one in extra for word in ("--model", one)]


def _setup(given: SizeOptions, subject: SizedModel, http: HttpCost) -> Setup:
    """What is simulated, still of one replica. Raises ConfigError, ValueError for a wrong option."""
    from app.scheduler.policies import POLICIES
    from planner import sizing
    from planner.fleet import Setup

    profile = subject.profile.scaled(http.costs.scale)
    on_cpu = not profile.device.startswith("cuda")
    depth = 1 if on_cpu else max(1, int(profile.extra.get("push_depth", 1)))
    setup = Setup(
        profile,
        given.rate,
        workers=(subject.profile.max_batch,) * given.workers,
        device="shared" if given.workers > 1 else "serial",
        service=given.service or http.service or measured_service(profile),
        push_depth=depth,
        push_ahead_ns=0 if depth == 1 else _GPU_AHEAD_NS,
        arrivals=given.arrivals,
        lengths=given.lengths,
        router=given.router,
        requests=given.requests,
        seed=given.seed,
        front=http.costs,
        **{**subject.batching, **({"policy": given.policy} if given.policy else {})},
    )
    if setup.policy in POLICIES and POLICIES[setup.policy].workers(1):
        raise ConfigError(f"policy: {setup.policy} has workers of its own; `starling simulate` takes it")
    setup.check(sizing.LONGEST_S)
    return setup


def measured_service(profile: Profile) -> str:
    """Random batch times that vary as the profile's measurements did."""
    noise = profile.extra.get("noise")
    variation = float(noise) if isinstance(noise, int | float) else 0.0
    return f"gamma:{variation:.3f}" if variation >= _STEADY else "deterministic"


def _sized(setup: Setup, goal: Goal, runs: Runs, *, http_assumed: bool) -> SizingResult:
    """The fewest replicas for the goal. `http_assumed`: the cost of requests was not measured."""
    from planner import sizing

    setup = setup.solved()
    replicas = sizing.fewest(setup, goal.sized_rate, goal.p99_ns, goal.most, runs)
    if replicas is None:
        return SizingResult(setup, None)
    counts = [replicas] if replicas == 1 else [replicas, replicas - 1]
    loads = [(count, rate) for count in counts for rate in (goal.rate, goal.sized_rate)]
    if_http_doubles = None
    if http_assumed and setup.front is not None:
        if_http_doubles = sizing.estimate(replace(setup, front=setup.front.doubled()), replicas, goal.rate, runs)
    error = _error(setup)
    off = (1 / (1 + error), 1 + error) if error else ()
    return SizingResult(
        setup,
        replicas,
        tuple(sizing.estimate(setup, count, rate, runs) for count, rate in loads),
        sizing.most_rate(setup, replicas, goal.p99_ns, goal.sized_rate, runs),
        if_http_doubles,
        error,
        tuple(
            sizing.estimate(replace(setup, profile=setup.profile.scaled(factor)), replicas, goal.rate, runs)
            for factor in off
        ),
    )


def _error(setup: Setup) -> float:
    """The share by which batch times may be off: of the profile, and of what was fitted to measured loads."""
    errors = sorted(setup.profile.errors) or [0.0]
    return hypot(errors[len(errors) // 2], 0.0 if setup.front is None else setup.front.error)
