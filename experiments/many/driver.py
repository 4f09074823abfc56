"""Several models in virtual time: the scheduler itself, or for one worker a rule that says what to run next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Program, Row, Stage, Step, WorkerSpec
from experiments.common.baselines import scheduler_of

Instants = NDArray[np.int64]
Latencies = list[NDArray[np.float64]]  # by model, in ms, in order of arrival

_TICK_NS = 1_000_000_000
_QUEUE = 1 << 30  # rows that may wait: nothing is refused


def arrivals(rates: Sequence[float], requests: int, seed: int) -> list[Instants]:
    """Poisson arrivals of each model until about so many of all have come."""
    random = np.random.default_rng(seed)
    ends_ns = requests / sum(rates) * 1e9
    times = [
        (random.exponential(1e9 / rate, size=round(1.2 * ends_ns * rate / 1e9) + 100)).cumsum().astype(np.int64)
        for rate in rates
    ]
    return [one[one < ends_ns] for one in times]


def serve(
    profiles: Sequence[Profile],
    tables: Sequence[ControlTables],
    instants: Sequence[Instants],
    baseline: str,
) -> Latencies:
    """What the scheduler does on one worker, under the policy `adaptive`. `baseline`: its order and share, see
    `experiments.common.baselines`.
    """
    largest = max(one.max_batch for one in profiles)
    device = DeviceSpec((WorkerSpec(largest),))
    scheduler = scheduler_of(baseline, device)
    for program, (profile, control) in enumerate(zip(profiles, tables, strict=True)):
        stages = (Stage(profile),)
        scheduler.add_program(Program(program, profile.model, stages, max_batch=profile.max_batch, max_queue=_QUEUE), 0)
        scheduler.control(program, control, 0)
    times = [one.batch_ns for one in profiles]
    latency: list[list[tuple[int, int]]] = [[] for _ in profiles]
    running: list[tuple[int, int, int]] = []  # heap of when each unit ends, the unit, and its time
    tick = _TICK_NS

    def carry_out(step: Step, now: int) -> None:
        for call in step.done:
            latency[call.program].append((call.id, now - call.arrived))
        for unit in step.start:
            time = times[unit.program][unit.size - 1]
            heappush(running, (now + time, unit.id, time))

    def pass_time(until: int) -> None:
        nonlocal tick
        while min(running[0][0] if running else tick, tick) <= until:
            if running and running[0][0] <= tick:
                now, unit, time = heappop(running)
                scheduler.finished(Outcome(unit, None, time), now)
                carry_out(scheduler.step(now), now)
            else:
                scheduler.tick(tick)
                carry_out(scheduler.step(tick), tick)
                tick += _TICK_NS

    of = np.concatenate([np.full(len(one), program) for program, one in enumerate(instants)])
    at = np.concatenate(instants)
    order = at.argsort(kind="stable")
    for ident, (now, program) in enumerate(zip(at[order].tolist(), of[order].tolist(), strict=True)):
        pass_time(now)
        scheduler.submit(Call(ident, program, [Row()], Klass.REALTIME, 0, now, None), now)
        carry_out(scheduler.step(now), now)
    while running:
        pass_time(running[0][0])
    return [np.array([time for _, time in sorted(one)]) / 1e6 for one in latency]


def follow(
    profiles: Sequence[Profile],
    instants: Sequence[Instants],
    choose: Callable[[Sequence[int]], tuple[int, int]],
) -> Latencies:
    """What a rule does: of the rows of each model that wait, so many of one run, at the size that is fastest."""
    times = [padded(one.batch_ns)[0] for one in profiles]
    ended = [np.zeros(len(one)) for one in instants]
    served = [0] * len(instants)
    now = 0
    while True:
        waiting = [int(one.searchsorted(now, "right")) - done for one, done in zip(instants, served, strict=True)]
        if not any(waiting):
            coming = [int(one[done]) for one, done in zip(instants, served, strict=True) if done < len(one)]
            if not coming:
                return [(end - one) / 1e6 for end, one in zip(ended, instants, strict=True)]
            now = min(coming)
            continue
        model, rows = choose(waiting)
        now += times[model][rows - 1]
        ended[model][served[model] : served[model] + rows] = now
        served[model] += rows
