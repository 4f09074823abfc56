"""One run of `steps`, live or simulated: its requests, what came of each, and one policy's runs side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bench.stats import Repeat
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.policies import default_workers
from app.sim.device import Shared
from loadtest.common.simulated import Instants, Server, serve, stepped

from .modelled_gpu import MAX_BATCH
from .steps_data import Schedule

WARM_S = 2.0  # at the first rate, sent to both and left out: the rate monitor closes a whole window of 1 s in it

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Course:
    """The requests of one run: `instants` in ns from the first, `warm` of them before the steps of these `sizes`."""

    instants: Instants
    warm: int
    sizes: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return float(self.instants[-1]) / 1e9

    def parts(self, values: Column) -> list[Column]:
        """The values of each step's requests, from one for each request of the run."""
        if len(values) != len(self.instants):
            raise ValueError(f"requests: expected {len(self.instants)}, got {len(values)}")
        return np.split(values[self.warm :], np.cumsum(self.sizes)[:-1])


def course(schedule: Schedule, peak: float, seed: int, warm_s: float = WARM_S) -> Course:
    """Poisson arrivals at the rates of the steps. A recorded trace begins at 0, so this does."""
    steps = [(count, share * peak) for count, share in schedule.steps]
    warm = max(1, round(warm_s * steps[0][1]))
    instants = stepped([(warm, steps[0][1]), *steps], seed)
    return Course(instants - instants[0], warm, tuple(count for count, _ in steps))


@dataclass(frozen=True)
class Run:
    """A run of one policy, a value for each request in order of arrival, ms; NaN where there was no right answer.

    `served_ms`: from arrival to the end of the batch, as the server says; simulated it is the latency itself.
    `rows`, `unit_ms`: rows and time of a batch, mean over batches. Of live runs only: `against`, the time of all
    batches over what the profile says of their sizes, by number of units at once; `late_ms`, the 99th percentile of
    the sender's own lag; `others`, see Sent.
    """

    latency_ms: Column
    served_ms: Column
    rows: float
    unit_ms: float
    against: dict[int, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    late_ms: float = 0.0
    others: float | None = None


def measured(sent: Sent, planned: Course, profile: ModelProfile) -> Run:
    """What the load generator noted. Raises ValueError where it was not sent as simulated, or nothing came of it."""
    repeat = sent.repeat
    if not np.array_equal(repeat.intended_ns, planned.instants):
        raise ValueError("instants: expected those of the simulator, got others")
    batch, compute = repeat.batch, repeat.compute_ns
    known = (batch > 0) & (compute >= 0)
    if not known.any():
        raise ValueError(f"answers: expected some that say their batch, got none: {dict(repeat.errors)}")
    each = 1 / batch[known]  # each of b requests reports the whole batch
    took = float((compute[known] * each).sum())
    against = {}
    for units in {1, *profile.concurrency_ns}:
        times = np.asarray(profile.times(units))
        against[units] = took / float((times[batch[known] - 1] * each).sum())
    told = (repeat.queue_ns >= 0) & (compute >= 0) & (repeat.latency_ns >= 0)
    count = float(each.sum())
    return Run(
        np.where(repeat.latency_ns >= 0, repeat.latency_ns / 1e6, np.nan),
        np.where(told, (repeat.queue_ns + compute) / 1e6, np.nan),
        int(known.sum()) / count, took / count / 1e6, dict(sorted(against.items())), dict(repeat.errors),
        float(np.quantile(repeat.lag_ns, 0.99)) / 1e6, sent.others,
    )  # fmt: skip


def simulated(server: Server, planned: Course) -> Run:
    """The same requests in virtual time. Raises RuntimeError where the policy keeps some for ever."""
    device = Shared(server.profile, len(server.workers)) if server.running > 1 else None
    served = serve(server, planned.instants, device)
    tally = served.tally
    return Run(served.latency_ms, served.latency_ms, tally.rows / tally.units, tally.unit_ns / tally.units / 1e6)


@dataclass(frozen=True)
class Sent:
    """A run as the load generator noted it. `others`: cores that processes with no part in it used meanwhile; None
    where the platform does not tell."""

    repeat: Repeat
    others: float | None = None


Send = Callable[[str, Course, int], Awaitable[Sent]]  # policy, requests, seed
Told = Callable[[str], None]


async def alternate(
    policies: Sequence[str], courses: Sequence[dict[str, Course]], send: Send, told: Told
) -> dict[tuple[str, str], list[Sent]]:
    """Each seed's schedules, one policy after the other within each, the first another one for each seed.

    By experiment and policy: a run for each seed. So a change of the machine's speed meets all policies.
    """
    found: dict[tuple[str, str], list[Sent]] = {}
    for seed, runs in enumerate(courses):
        first = seed % len(policies)
        for name, planned in runs.items():
            means = []
            for policy in (*policies[first:], *policies[:first]):
                sent = await send(policy, planned, seed)
                found.setdefault((name, policy), []).append(sent)
                done = sent.repeat.completed
                means.append(f"{policy} {done.mean() / 1e6:.1f} ms" if len(done) else f"{policy} no answer")
                means[-1] += "".join(f", {count} x {kind}" for kind, count in sent.repeat.errors.items())
            told(f"seed {seed + 1} of {len(courses)}, {name}: {'; '.join(means)}")
    return found


def by_step(planned: Sequence[Course], values: Sequence[Column]) -> list[list[float | None]]:
    """For each seed the mean of each step; None where no request of a step was answered."""

    def mean(part: Column) -> float | None:
        right = part[~np.isnan(part)]
        return float(right.mean()) if len(right) else None

    return [[mean(part) for part in one.parts(column)] for one, column in zip(planned, values, strict=True)]


def compare(planned: Sequence[Course], live: Sequence[Run], virtual: Sequence[Run]) -> dict[str, Any]:
    """One policy in one experiment, a run for each seed: the page's figures, and the first seed request by request."""
    failed: dict[str, int] = {}
    for run in live:
        for kind, count in run.failed.items():
            failed[kind] = failed.get(kind, 0) + count
    warm = planned[0].warm

    def first(runs: Sequence[Run]) -> list[float | None]:
        """The first seed without its warm-up; None for a request without a right answer."""
        return [None if np.isnan(value) else round(float(value), 3) for value in runs[0].latency_ms[warm:]]

    return {
        "live_ms": by_step(planned, [run.latency_ms for run in live]),
        "served_ms": by_step(planned, [run.served_ms for run in live]),
        "simulated_ms": by_step(planned, [run.latency_ms for run in virtual]),
        "requests": sum(len(one.instants) for one in planned), "failed": failed,
        "rows": [float(np.mean([run.rows for run in runs])) for runs in (live, virtual)],
        "unit_ms": [float(np.mean([run.unit_ms for run in runs])) for runs in (live, virtual)],
        "against": {str(units): float(np.mean([run.against[units] for run in live])) for units in live[0].against},
        "late_ms": max(run.late_ms for run in live),
        "others": [run.others for run in live],
        "run": {"live": first(live), "simulated": first(virtual)},
    }  # fmt: skip


def capacities(policy: str, at_once: int) -> tuple[int, ...]:
    """`ebird` brings its own workers, of which as many run at once."""
    return default_workers(policy, MAX_BATCH) if policy == "ebird" else (MAX_BATCH,) * at_once
