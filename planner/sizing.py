"""Sizes a deployment by simulation: the fewest equal replicas that keep an objective for the 99th percentile latency.

A number of replicas is judged by the largest 99th percentile of `RUNS` independent runs, in which refused and dropped
requests count as late. What that proves: docs/theory/simulator.md. Behind a random router one replica is simulated for
all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from .fleet import Setup, counted, processes
from .simulated_device import slowdown
from .simulated_front import FrontCosts
from .tally import Tally

RUNS = 8
_SHARE = 0.99  # of the requests must keep the objective
_EACH = 1000  # requests of each replica in a run, at least, because a run starts empty
_RATE_STEP = 1.05  # accuracy of the largest rate
LONGEST_S = 2e5  # of a run, in simulated time: each second costs some microseconds, and there are a hundred runs
_FEWEST = 100  # requests of a percentile
_QUIET = 0.001  # a load at which requests hardly ever meet

#: Simulates runs: `counted` of each, in their order.
Simulate = Callable[[Iterable[Setup]], Iterable[Tally]]


class Runs:
    """Simulates the runs of replicas at a rate, none of them twice, and so many `at_once`: each group of them when its
    first is asked for. `on_run` is called after each.
    """

    def __init__(self, at_once: int = 1, simulate: Simulate | None = None, on_run: Callable[[], None] = lambda: None):
        self.at_once = at_once
        self.simulate: Simulate = simulate or (lambda setups: map(counted, setups))
        self._on_run = on_run
        self._ended: dict[tuple[int, int, float], list[Tally]] = {}
        self._setups: dict[int, Setup] = {}  # keeps them, so that no other setup gets the id of one

    def of(self, setup: Setup, replicas: int, rate: float) -> Iterator[Tally]:
        """`RUNS` of them. `setup` has been solved (`Setup.solved`); run k has its seed plus k."""
        self._setups[id(setup)] = setup
        ended = self._ended.setdefault((id(setup), replicas, rate), [])
        yield from list(ended)
        if setup.router == "random" and setup.arrivals == "poisson":
            one = replace(setup, replicas=1, rate=rate / replicas)
        else:
            one = replace(setup, replicas=replicas, rate=rate, requests=max(setup.requests, _EACH * replicas))
        while left := range(len(ended), RUNS)[: self.at_once]:
            group = list(self.simulate([replace(one, seed=setup.seed + run) for run in left]))
            ended += group
            for tally in group:
                self._on_run()
                yield tally


@contextmanager
def runs_in_processes(count: int, on_run: Callable[[], None]) -> Iterator[Runs]:
    """Runs on so many processes at once."""
    with processes(count) as pool:
        yield Runs(count, lambda setups: pool.map(counted, setups), on_run)


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """The simulated figures of so many replicas at a rate.

    `p99_ns`: of each run, ascending; infinity if more than 1 % of the requests were not answered. A load of 1 or more
    never settles and is not simulated: then latencies are infinity and other figures 0.

    `load`: the rate as a share of what the replicas can serve at most. `busy`: share of time in which a replica
    computes. `http`: share of time in which its event loop or a helper thread is at work. `refused`: share of requests.
    """

    replicas: int
    rate: float
    load: float
    p50_ns: float
    p99_ns: tuple[float, ...]
    busy: float
    http: float
    mean_batch: float
    refused: float

    @property
    def median_ns(self) -> float:
        """The median of the runs."""
        return self.p99_ns[len(self.p99_ns) // 2]

    def keeps(self, p99_ns: float) -> bool:
        return self.p99_ns[-1] <= p99_ns


def capacity(setup: Setup) -> float:
    """The most rows per second that one replica can serve, with hand-overs and its HTTP front."""
    profile, workers = setup.profile, len(setup.workers) or 1
    handover = (profile.handover_ns or 0) * len(profile.parts)
    if setup.lengths:
        batches = [(profile.best, profile.best * 1e9 / setup.peak)]
    elif setup.device == "serial" or workers == 1:
        batches = [(size, time + handover) for size, time in enumerate(profile.batch_ns, 1)]
    else:
        slow = slowdown(profile, workers)
        slowed = zip(profile.batch_ns, slow, strict=True)
        batches = [(size, (time * factor + handover) / workers) for size, (time, factor) in enumerate(slowed, 1)]
    return max(_most(size, time, setup.front) for size, time in batches)


def _most(size: int, batch_ns: float, front: FrontCosts | None) -> float:
    """The most rows per second in batches of one size, which take `batch_ns` each beside an idle front.

    At a rate r the front is busy for r x h of the time, where h is its time for a row. Then a batch takes
    1 + slowed x r x h times as long: size / r = batch x (1 + slowed x r x h), solved for r.
    """
    if front is None or not (held := front.held_ns(size)):
        return size * 1e9 / batch_ns
    slower = batch_ns * front.slowed * held
    root = math.sqrt(batch_ns**2 + 4 * slower * size)
    return 1e9 * min(1 / held, 2 * size / (batch_ns + root))


def estimate(setup: Setup, replicas: int, rate: float, runs: Runs) -> LatencyEstimate:
    """The figures of all runs of so many replicas at a rate."""
    if (load := rate / replicas / capacity(setup)) >= 1:
        return LatencyEstimate(replicas, rate, load, math.inf, (math.inf,) * RUNS, 0.0, 0.0, 0.0, 0.0)
    return _estimate(setup, replicas, rate, list(runs.of(setup, replicas, rate)))


def fewest(setup: Setup, rate: float, p99_ns: float, most: int, runs: Runs) -> int | None:
    """The smallest number of replicas up to `most` that keeps the objective at this rate; None if none does.

    Assumes that more replicas are not slower. Searches upwards from what the rate requires, in steps that double, and
    then bisects.
    """
    below = math.floor(rate / capacity(setup))  # a load of 1 or more never settles
    if below >= most or not keeps_alone(setup, p99_ns, Runs(runs.at_once, runs.simulate)):
        return None
    for step in (1 << power for power in count()):
        above = min(below + step, most)
        if _keeps(setup, above, rate, p99_ns, runs):
            break
        if above == most:
            return None
        below = above
    while above - below > 1:
        between = (below + above) // 2
        if _keeps(setup, between, rate, p99_ns, runs):
            above = between
        else:
            below = between
    return above


def most_rate(setup: Setup, replicas: int, p99_ns: float, kept: float, runs: Runs) -> float:
    """The largest rate at which so many replicas keep the objective, to 5 %. `kept`: a rate at which they do."""
    above = replicas * capacity(setup)
    while above > kept * _RATE_STEP:
        between = math.sqrt(kept * above)
        if _keeps(setup, replicas, between, p99_ns, runs):
            kept = between
        else:
            above = between
    return kept


def keeps_alone(setup: Setup, p99_ns: float, runs: Runs) -> bool:
    """Whether requests keep the objective at a very low load. If not, more replicas do not help."""
    rate = _QUIET * capacity(setup)
    requests = min(setup.requests, _EACH, max(_FEWEST, round(rate * LONGEST_S)))
    return _keeps(replace(setup, requests=requests), 1, rate, p99_ns, runs)


def _keeps(setup: Setup, replicas: int, rate: float, p99_ns: float, runs: Runs) -> bool:
    """As `estimate(...).keeps`, but stops at the first run that misses the objective."""
    return all(_late(tally) <= p99_ns for tally in runs.of(setup, replicas, rate))


def _late(tally: Tally) -> float:
    """The latency in ns that 99 % of all requests do not exceed; infinity if more than 1 % were not answered."""
    if not tally.completed or tally.completed < _SHARE * tally.requests:
        return math.inf
    return tally.percentile(_SHARE * tally.requests / tally.completed) or math.inf


def _estimate(setup: Setup, replicas: int, rate: float, tallies: Sequence[Tally]) -> LatencyEstimate:
    requests = sum(tally.requests for tally in tallies)
    elapsed = sum(tally.end_ns * tally.nodes for tally in tallies)
    return LatencyEstimate(
        replicas=replicas,
        rate=rate,
        load=rate / replicas / capacity(setup),
        p50_ns=sorted(tally.percentile(0.5) or math.inf for tally in tallies)[len(tallies) // 2],
        p99_ns=tuple(sorted(map(_late, tallies))),
        busy=sum(tally.busy_ns for tally in tallies) / elapsed,
        http=sum(tally.front_ns for tally in tallies) / elapsed,
        mean_batch=sum(tally.rows for tally in tallies) / max(1, sum(tally.units for tally in tallies)),
        refused=sum(tally.refused + tally.expired for tally in tallies) / requests,
    )
