"""Invariant: over any trace of calls, failures, deadlines and clients that go, each call is answered exactly once, with
its own rows or with an error that is its own; and when all is over nothing of any call is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes import MS, FakeDevice, Fate, Pushed, VirtualLoop, virtual, virtual_loop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import errors
from app.contract import Answer, ModelCall, awaited
from app.engine.served_model import ServedModel
from app.scheduler.types import Fault

from .rig import HEAVY, POISON, Rig, answers, make_model, rows_of, serving, strict

US = 1_000
Stages = tuple[tuple[Callable[..., Any], ...], tuple[Callable[..., Any], ...]]


@dataclass(frozen=True)
class Visit:
    """A client's call: when it comes, how long its body takes, when it goes (after the lease) and how."""

    at_us: int
    rows: int
    bad: float | None  # the value of its last row, where that is a row that fails
    model: int
    decode_us: int
    timeout_us: int | None
    priority: int
    goes_us: int | None
    how: str  # "fail": the call is failed; "task": the handler is cancelled


@dataclass
class Seen:
    """How a call ended, for each of its visits."""

    outcome: object = None
    times: int = 0
    deadline: int | None = None
    ended: int = 0


visits = st.builds(
    Visit,
    at_us=st.integers(0, 8_000),
    rows=st.integers(1, 6),
    bad=st.sampled_from([None] * 6 + [POISON, HEAVY]),
    model=st.integers(0, 1),
    decode_us=st.sampled_from([0, 0, 0, 300, 2_000]),
    timeout_us=st.sampled_from([None, None, None, 500, 3_000, 10_000]),
    priority=st.integers(0, 3),
    goes_us=st.sampled_from([None, None, None, 0, 700, 2_500, 6_000]),
    how=st.sampled_from(["fail", "task"]),
)
fates = st.lists(
    st.tuples(
        st.sampled_from([100 * US, MS, 1_700 * US, 6 * MS]), st.sampled_from([None] * 6 + [Fault.MODEL, Fault.OOM])
    ),
    min_size=1,
    max_size=12,
)
#: Capacities, push_depth, and whether a worker runs several stages by itself.
devices = st.tuples(st.sampled_from([((4,), 1), ((1, 1, 2), 1), ((2, 4), 2), ((8,), 2), ((1,), 1)]), st.booleans()).map(
    lambda drawn: (*drawn[0], drawn[1])
)
policies = st.sampled_from(["no_wait", "window", "static"])
BOUNDED = settings(suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Thousands of failures are meant here."""
    log = logging.getLogger("starling.engine")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


def values_of(number: int, visit: Visit) -> np.ndarray:
    values = [100.0 * (number + 1) + row for row in range(visit.rows)]
    if visit.bad is not None:
        values[-1] = visit.bad
    return rows_of(*values)


async def attend(rig: Rig, number: int, visit: Visit, seen: Seen) -> None:
    """One visit from its arrival on, as a handler would go through it."""
    loop = rig.loop
    served: ServedModel = rig.models[visit.model]
    await loop.passes(visit.at_us * US)
    arrived = loop.now
    if visit.timeout_us is not None:
        seen.deadline = arrived + visit.timeout_us * US
    try:
        asked = ModelCall(visit.rows, [values_of(number, visit)], priority=visit.priority, timeout_us=visit.timeout_us)
        with served.lease(asked) as lease:
            if visit.goes_us is not None:
                leave(loop, visit, lease, asyncio.current_task())
            await loop.passes(visit.decode_us * US)
            seen.outcome = await awaited(lease)
    except (errors.StarlingError, asyncio.CancelledError) as exc:
        seen.outcome = exc
    finally:
        seen.times += 1
        seen.ended = loop.now


def leave(loop: VirtualLoop, visit: Visit, lease, task: asyncio.Task) -> None:
    gone = partial(lease.fail, errors.ClientGone("gone")) if visit.how == "fail" else task.cancel
    loop.call_later(visit.goes_us * US / 1e9, gone)


def check(number: int, visit: Visit, seen: Seen, *, injected: bool, lost: bool) -> None:
    """The call ended once, in a way that was open to it."""
    assert seen.times == 1
    outcome = seen.outcome
    if isinstance(outcome, Answer):
        assert visit.bad is None
        sign = -1 if visit.model else 1
        assert np.array_equal(outcome.outputs[0], sign * answers(values_of(number, visit)))
        assert seen.deadline is None or seen.ended <= seen.deadline + MS  # a timer may be that late
    elif isinstance(outcome, errors.DeadlineExceeded):
        assert seen.deadline is not None
        if "would pass" not in str(outcome):  # else its batch was predicted to end too late, and it left at once
            assert seen.ended >= seen.deadline
    elif isinstance(outcome, errors.ModelFailed):
        assert injected or visit.bad is not None
    elif isinstance(outcome, errors.ClientGone):
        assert (visit.how, visit.goes_us is None) == ("fail", False)
    elif isinstance(outcome, asyncio.CancelledError):
        assert (visit.how, visit.goes_us is None) == ("task", False)
    elif isinstance(outcome, errors.DeadlineUnreachable):
        assert seen.deadline is not None
    else:
        assert isinstance(outcome, errors.QueueFull) or (lost and isinstance(outcome, errors.NotReady))


async def play(trace: list[Visit], fate_list, device_of, policy: str, dies_at: int | None, stages: Stages) -> None:
    """The trace through an engine, then all checks. `stages`: of both models; without, they are in one piece."""
    loop = virtual_loop()
    turn = iter(range(1 << 30))

    def fate(pushed: Pushed) -> Fate:
        count = next(turn)
        if count == dies_at:
            return Fate(MS, Fault.DEVICE)
        return Fate(*fate_list[count % len(fate_list)])

    capacities, depth, multi_step = device_of
    device = FakeDevice(loop, *capacities, fate=fate, push_depth=depth, multi_step=multi_step)
    options = {"policy": policy, "max_delay_ms": 2.0, "max_batch": 4, "max_queue": 12}
    other = make_model(lambda x: negated(x), name="other", stages=stages[1], **options)
    async with serving(make_model(stages=stages[0], **options), other, device=device) as rig:
        seen = [Seen() for _ in trace]
        tasks = [loop.create_task(attend(rig, n, v, s)) for n, (v, s) in enumerate(zip(trace, seen, strict=True))]
        await asyncio.gather(*tasks)
        await loop.passes(1_000 * MS)  # what nobody waits for ends too
        injected = any(fault is not None for _, fault in fate_list)
        lost = rig.engine.driver.lost is not None
        for number, (visit, one) in enumerate(zip(trace, seen, strict=True)):
            check(number, visit, one, injected=injected, lost=lost)
        if not lost:
            assert all(pushed.ended is not None for pushed in device.pushed)


def negated(x):
    return -(strict(x) * 2 + 1)


def through(x):
    """What it passes on is what it was given, and more."""
    return x, x * 2


#: Stages of both models, of which another one fails; and both in one piece.
STAGES: list[Stages] = [
    ((), ()),
    ((lambda x: strict(x) * 2, lambda x: x + 1), (through, lambda x, y: -(y + strict(x) * 0 + 1))),
    ((through, lambda x, y: (strict(x), y), lambda x, y: y + 1), (negated, lambda y: y)),
]
traces = st.lists(visits, min_size=1, max_size=14)


@settings(BOUNDED, max_examples=120)
@given(
    trace=traces,
    fate_list=fates,
    device_of=devices,
    policy=policies,
    stages=st.sampled_from(STAGES),
    dies_at=st.sampled_from([None, None, *range(7)]),
)
@virtual
async def test_each_call_is_answered_once_with_its_own_rows(trace, fate_list, device_of, policy, stages, dies_at):
    """Or, where the device is lost, with an error. And nothing is kept between two stages of a row that has ended
    (`Rig.assert_settled`)."""
    await play(trace, fate_list, device_of, policy, dies_at, stages)
