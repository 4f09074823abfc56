"""`starling size`: how many replicas a rate needs, and with which flags, from a model's profile and the simulator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.size_plan import Asked, Found, Goal
from app.cli.size_subject import HttpCost, Subject, from_file, stored
from app.errors import ConfigError, as_config_error

if TYPE_CHECKING:
    from app.scheduler.estimates.profile import ModelProfile
    from app.sim.fleet import Setup

_MS = 1e6
_NEAR = 1.05  # percentiles as near as this are equal: the simulator knows them no better
_GPU_AHEAD_NS = 300_000  # the server's own default on a GPU
_ROUTERS = ("random", "round_robin")  # those that do not look at the replicas: what stands before them seldom does
_QUARTILES = 1.349  # standard deviations between the quartiles of a normal distribution
_STEADY = 0.005  # a smaller coefficient of variation changes no figure


def register(cli: typer.Typer) -> None:
    """Add the command to the command line."""
    cli.command()(size)


def size(
    rate: Annotated[float, typer.Option(help="Requests per second, of all replicas together; of one row each.")],
    p99_ms: Annotated[float, typer.Option(help="99 % of the requests must be answered within it.")],
    model: Annotated[str, typer.Option(help="The model's name, or its folder. \\[the only one there is]")] = "",
    models: Annotated[
        str, typer.Option(envvar="STARLING_MODELS", help="A model repository folder, or a set that ships: demo, bench.")
    ] = "demo",
    profile: Annotated[
        str, typer.Option(help="A profile's file, or linear:A+Bb, in place of the stored one of --model.")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the model and its HTTP cost first, on this machine.")
    ] = False,
    budget_s: Annotated[float, typer.Option(help="--measure: seconds for the profile.")] = 60,
    headroom: Annotated[float, typer.Option(help="Per cent of the rate that must fit on top.")] = 20,
    http_us: Annotated[
        float | None,
        typer.Option(help="CPU time of a request beside its batch, microseconds. \\[as measured, or 200]"),
    ] = None,
    arrivals: Annotated[str, typer.Option(help="As of `starling simulate`: poisson, uniform, ...")] = "poisson",
    service: Annotated[
        str, typer.Option(help="Batch times: deterministic, exponential, gamma:CV. \\[as the profile's spread]")
    ] = "",
    lengths: Annotated[str, typer.Option(help="Lengths of the requests, as of `starling simulate`.")] = "",
    router: Annotated[str, typer.Option(help="What is before the replicas: random or round_robin.")] = "random",
    policy: Annotated[str, typer.Option(help="When to form a batch. \\[the model's]")] = "",
    device: Annotated[
        str, typer.Option(envvar="STARLING_DEVICE", help="Where it runs: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option(envvar="STARLING_PRECISION", help="That of the profile: fp32, bf16, fp16.")
    ] = "fp32",
    profile_dir: Annotated[
        Path | None,
        typer.Option(envvar="STARLING_PROFILE_DIR", help="Where profiles are kept. \\[the user's cache folder]"),
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=1, help="The most to consider.")] = 1000,
    requests: Annotated[int, typer.Option(min=100, help="Requests of each simulated run, of which there are 8.")] = (
        10_000
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; the others have the next ones.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The replicas that a rate needs, their flags, and what one replica less would do.

    Simulates the model's own scheduler on its stored profile (`starling profile`), behind a router that does not look
    at the replicas, with an HTTP front that takes --http-us a request. Exit status 1 if no number of replicas is
    enough.
    """
    goal = _goal(rate, p99_ms, headroom, max_replicas)
    if router not in _ROUTERS:
        raise ConfigError(f"router: expected {' or '.join(_ROUTERS)}, got {router!r}")
    if http_us is not None and not 0 <= http_us < 1e9:
        raise ConfigError(f"http-us: expected at least 0, got {http_us:g}")
    with as_config_error():
        from app.scheduler.policies import POLICIES

        if profile:
            subject = from_file(profile)
        else:
            subject = stored(model, models, device, precision, profile_dir, budget_s if measure else None)
        http = subject.http if http_us is None else HttpCost(http_us, "given")
        setups = [
            replace(
                _setup(one, workers, service),
                arrivals=arrivals,
                lengths=lengths,
                router=router,
                requests=requests,
                seed=seed,
                http_ns=round(http.us * 1e3),
                **{**subject.batching, **({"policy": policy} if policy else {})},
            )
            for one, workers in _configurations(subject)
        ]
        for setup in setups:
            if setup.policy in POLICIES and POLICIES[setup.policy].sizes_itself:
                raise ConfigError(f"policy: {setup.policy} has workers of its own; `starling simulate` takes it")
            setup.check()
        with _spinning() as told:
            found = [_search(setup, goal, told) for setup in setups]
            best = _best(found, goal)
            if best is not None:
                best = _with_margin(best, goal, told)
    from app.cli import size_text

    asked = Asked(goal, subject, http, tuple(found), policy)
    print(json.dumps(size_text.told(best, asked), indent=2) if as_json else size_text.text(best, asked))
    if best is None:
        sys.exit(1)


def _goal(rate: float, p99_ms: float, headroom: float, most: int) -> Goal:
    """Raises ConfigError that names the option at fault."""
    for name, value in (("rate", rate), ("p99-ms", p99_ms)):
        if not 0 < value < 1e9:
            raise ConfigError(f"{name}: expected above 0, got {value:g}")
    if not 0 <= headroom <= 1000:
        raise ConfigError(f"headroom: expected per cent from 0 to 1000, got {headroom:g}")
    return Goal(rate, p99_ms * _MS, headroom / 100, most)


def _configurations(subject: Subject) -> list[tuple[ModelProfile, int]]:
    """Profiles, each with numbers of workers that were measured at once. On a CPU one core is left to the HTTP front,
    unless no profile is of so few threads."""
    every = [(profile, workers) for profile in subject.profiles for workers in sorted({1, *profile.concurrency_ns})]
    room = None if subject.cores is None else max(1, subject.cores - 1)
    fit = [(one, workers) for one, workers in every if room is None or (one.threads or 1) * workers <= room]
    return fit or every[:1]


def _setup(profile: ModelProfile, workers: int, service: str) -> Setup:
    from app.sim.fleet import Setup

    on_cpu = not profile.device.startswith("cuda")
    depth = 1 if on_cpu else max(1, int(profile.extra.get("push_depth", 1)))
    return Setup(
        profile,
        1.0,
        workers=(profile.max_batch,) * workers,
        device="shared" if workers > 1 else "serial",
        service=service or measured_service(profile),
        transfers="overlap" if profile.transfer_ns else "none",
        push_depth=depth,
        push_ahead_ns=0 if depth == 1 else _GPU_AHEAD_NS,
    )


def measured_service(profile: ModelProfile) -> str:
    """Random batch times with the median spread of the profile's sizes, taken for that of a normal distribution."""
    spreads = sorted(float(one) for one in dict(profile.extra.get("spread", {})).values())
    variation = spreads[len(spreads) // 2] / _QUARTILES if spreads else 0.0
    return f"gamma:{variation:.3f}" if variation >= _STEADY else "deterministic"


def _search(setup: Setup, goal: Goal, told: Callable[[], None]) -> Found:
    from app.sim import sizing

    setup = setup.solved()
    replicas = sizing.fewest(setup, goal.sized_rate, goal.p99_ns, goal.most, told)
    if replicas is None:
        return Found(setup, None)
    return Found(setup, replicas, (sizing.estimate(setup, replicas, goal.rate, told),))


def _best(found: Sequence[Found], goal: Goal) -> Found | None:
    """The fewest replicas; of these the lowest percentile; of those near it the fewest workers, and threads."""
    enough = [one for one in found if one.replicas is not None]
    if not enough:
        return None
    least = min(one.replicas or 0 for one in enough)
    few = [one for one in enough if one.replicas == least]
    lowest = min(one.at[0].p99_ns[-1] for one in few)
    near = [one for one in few if one.at[0].p99_ns[-1] <= _NEAR * lowest]
    return min(near, key=lambda one: (len(one.setup.workers), one.setup.profile.threads or 1))


def _with_margin(found: Found, goal: Goal, told: Callable[[], None]) -> Found:
    from app.sim import sizing

    assert found.replicas is not None
    setup, replicas = found.setup, found.replicas
    others = [(replicas, goal.sized_rate)]
    if replicas > 1:
        others += [(replicas - 1, goal.rate), (replicas - 1, goal.sized_rate)]
    at = (*found.at, *(sizing.estimate(setup, count, rate, told) for count, rate in others))
    return replace(found, at=at, most_rate=sizing.most_rate(setup, replicas, goal.p99_ns, goal.sized_rate, told))


@contextmanager
def _spinning() -> Iterator[Callable[[], None]]:
    """Seconds and simulated runs on a terminal's standard error: how many there will be is not known."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:.0f} runs simulated"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("size", total=None)
        yield lambda: bar.advance(task)
