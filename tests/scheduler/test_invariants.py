"""Each admitted call leaves exactly once: done, or dropped with a reason; a cancelled one leaves in silence.

Also, after every Step of every trace (the checks are `Book.check`):
- a worker has at most push_depth units, at most max_running workers have one, and at most max_alive rows are alive
- a unit never exceeds its worker's capacity nor its program's max_batch; at the end nothing runs, waits or is alive
- no unit has rows of two classes; a queue that refuses a call is full of rows of its class
- no best-effort unit starts while a real-time row waits that could, nor beside a real-time unit unless the pair is
  known to allow it; what is handed over of them keeps the budget, and one worker free
- nothing starts past its deadline; while rows wait and nothing runs, a wake-up is asked for
- within a key, starts are in order of (class, priority, arrival); without a policy that waits, between keys too,
  unless rows at one stage step aside for those at another, or a fast model overtakes, by a round at most; with a policy
  that reorders, the first row of each unit is in this order, and the others are of its class and priority and next to
  one another by length
- the batch table counts what its rows have been through
- a unit of several steps or stages is recalled when a row should leave it, or others should join it or go first
- no row starts that is predicted to end after its deadline, but in a unit that is run again
- `no_wait`, `late`, and `adaptive` under `latency`, idle no usable worker while rows wait
- each row ends once, in its own slot, whatever was batched, split or re-run; a bad row fails its own call only
- what was recorded gives the same Steps when replayed, on a scheduler of its own
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import few, repeatable

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.policies import POLICIES
from app.scheduler.types import AT_ONCE, ClassSpec, DeviceSpec, Klass, Program, Stage, WorkerSpec
from planner.replay import replay

from .book import UNBOUNDED
from .driven import scheduler_of
from .world import Arrival, Input, Trace, World, make_call, make_device, make_program

CI = repeatable(30)
FEW = repeatable(20)

MIXED = "mixed"
SOCIABLE = sorted(set(POLICIES) - {"ebird"})  # ebird shares a device with no other policy
CLASSES = {"both": list(Klass), "realtime": [Klass.REALTIME], "best_effort": [Klass.BEST_EFFORT]}
PROFILES = [(), (100,), (50, 60, 90, 70, 100, 120, 140, 160)]
SLOPE = tuple(range(100, 420, 40))  # of a cell: long rows that join others share the time, short ones gain
BY_LENGTH = Profile((60, 80, 100), by_length=((4, (20, 20, 30)), (10, (60, 80, 100))))
PER_TOKEN = Profile((15, 25, 35), by_length=((1, (10, 15, 20)), (12, (65, 125, 185))))  # it pays to pick rows by length


@cache
def tables() -> list[ControlTables]:
    """For the last of the profiles, of one worker and of two; of two also where each always waits for the other."""
    one, two = (solve(Profile(PROFILES[-1]), workers=workers, loads=(0.05, 0.5, 0.95)) for workers in (1, 2))
    waiting = tuple(tuple((0,) * len(column) for column in level) for level in two.others)
    return [one, two, replace(two, others=waiting)]


profiles = st.builds(
    replace, st.sampled_from([*map(Profile, PROFILES), BY_LENGTH]), handover_ns=st.sampled_from([None, None, 0, 30])
)
class_specs = st.builds(ClassSpec, budget_ns=st.sampled_from([10_000_000, 100, 60]))  # units take 15 to 185
devices = st.builds(
    lambda capacities, **options: make_device(*capacities, **options),
    capacities=st.lists(st.sampled_from([1, 2, 3, 8]), min_size=1, max_size=3),
    max_running=st.integers(1, 3),
    push_depth=st.integers(1, 2),
    push_ahead_ns=st.sampled_from([0, 40, AT_ONCE]),
    max_alive=st.sampled_from([1, 2, 5, UNBOUNDED]),
    multi_step=st.booleans(),
    classes=class_specs,
)
#: Some pairs were measured, and slow one another little or much; of others nothing is known.
slowdowns = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.01, 0.5])), max_size=9
).map(tuple)


def for_ebird(device: DeviceSpec) -> DeviceSpec:
    """With a worker of one row more, and no unit behind one at work."""
    return replace(device, workers=(*device.workers, WorkerSpec(1)), push_depth=1)


@st.composite
def stages(draw: st.DrawFn, first_repeats: bool) -> tuple[Stage, ...]:
    """One to three; any but the first may repeat, that one only where told."""
    count = draw(st.sampled_from([1, 1, 2, 3]))
    repeats = [(first_repeats or i > 0) and draw(st.booleans()) for i in range(count)]
    return tuple(Stage(draw(profiles), cell, own_steps=cell and draw(st.booleans())) for cell in repeats)


@st.composite
def programs(draw: st.DrawFn, policy: str, first_repeats: bool) -> tuple[Program, ...]:
    return tuple(
        make_program(
            ident,
            stages=draw(stages(first_repeats)),
            policy=draw(st.sampled_from(SOCIABLE)) if policy == MIXED else policy,
            max_batch=draw(st.sampled_from([1, 2, 3, 8])),
            max_queue=draw(st.sampled_from([4, 1024])),
            max_delay_ns=draw(st.sampled_from([0, 50, 2_000])),
            length_buckets=draw(st.sampled_from([(), (4, 8)])),
            max_alive=draw(st.sampled_from([UNBOUNDED, UNBOUNDED, 1, 3])),
            one_unit=draw(st.sampled_from([False] * 5 + [True])),
        )
        for ident in range(1, draw(st.integers(1, 3)) + 1)
    )


@st.composite
def arrivals(draw: st.DrawFn, programs: int, classes: list[Klass], most: int) -> tuple[Arrival, ...]:
    one = st.builds(
        Arrival,
        at=st.sampled_from([0, 0, 0, 1, 20, 200]),  # since the last
        program=st.integers(1, programs),
        lengths=st.lists(st.sampled_from([2, 6, 12]), min_size=1, max_size=5).map(tuple),
        klass=st.sampled_from(classes),
        priority=st.integers(0, 2),
        timeout=st.sampled_from([None, None, 60, 500]),
        cancel=st.sampled_from([None, None, None, 0, 30, 150]),
        extend=st.sampled_from([None, None, None, (0, None), (30, 200), (30, None), (150, 300)]),
        decode=st.sampled_from([0, 0, 40]),
        steps=st.integers(1, 3),
        bad=st.sampled_from([frozenset[int]()] * 5 + [frozenset({0})]),
    )
    drawn = draw(st.lists(one, min_size=1, max_size=most))
    times = accumulate(arrival.at for arrival in drawn)
    return tuple(replace(arrival, at=at) for at, arrival in zip(times, drawn, strict=True))


def inputs(name: str, programs: int, values: st.SearchStrategy[object]) -> st.SearchStrategy[list[Input]]:
    """None to three of a name, each with a value for a program."""
    told = st.tuples(st.integers(1, programs), values)
    return st.lists(st.tuples(st.sampled_from([0, 30, 150]), st.just(name), told), max_size=3)


@st.composite
def traces(draw: st.DrawFn, policy: str = MIXED, classes: str = "both", most: int = 20) -> Trace:
    """`most`: calls in a trace."""
    device = draw(devices)
    if policy == "ebird":
        device = for_ebird(device)
    served = draw(programs(policy, first_repeats=True))
    return Trace(
        device,
        served,
        draw(arrivals(len(served), CLASSES[classes], most)),
        oom_above=draw(st.sampled_from([None, None, 0, 1, 2])),
        lose_unit=draw(st.sampled_from([None, None, None, 3])),
        inputs=(
            *draw(st.sampled_from([(), (), ((30, "remove_program", (1,)),)])),
            *draw(st.sampled_from([(), ((100, "tick", ()), (200, "tick", ()))])),
            *draw(inputs("control", len(served), st.sampled_from([*tables(), None]))),
            *draw(inputs("reprofile", len(served), profiles)),
        ),
        seed=draw(st.sampled_from([None, 1, 2])),
        pairs=draw(slowdowns),
    )


@pytest.mark.parametrize(
    ("policy", "classes"),
    [*((policy, "both") for policy in (MIXED, *POLICIES)), *((MIXED, alone) for alone in ("realtime", "best_effort"))],
)
def test_invariants_hold_after_every_step(policy: str, classes: str) -> None:
    """What rows of one class alone do, those of both do as well: under mixed policies that is tried, too."""

    @(CI if classes == "both" else FEW)
    @given(traces(policy, classes))
    def holds(trace: Trace) -> None:
        World(trace).run()

    holds()


@CI
@given(traces("adaptive"), st.booleans())
def test_invariants_hold_where_rows_are_picked_by_length(trace: Trace, reorder: bool) -> None:
    programs = tuple(
        replace(one, policy=replace(one.policy, reorder=reorder), stages=(Stage(PER_TOKEN),) * len(one.stages))
        for one in trace.programs
    )
    arrivals = tuple(Arrival(a.at, a.program, a.lengths, a.klass, a.priority, None, a.cancel) for a in trace.arrivals)
    World(replace(trace, programs=programs, arrivals=arrivals)).run()


@st.composite
def cells(draw: st.DrawFn) -> Trace:
    """Long rows of recurrent models on workers that go on by themselves, most often later than predicted; rows fail at
    any of their steps, and callers leave at any moment."""
    capacities = draw(st.sampled_from([(8,), (4, 4), (8, 2), (4, 4, 4)]))
    device = make_device(
        *capacities, max_running=draw(st.integers(1, len(capacities))), push_depth=draw(st.integers(1, 2)),
        push_ahead_ns=draw(st.sampled_from([0, 40, AT_ONCE])), multi_step=True,
        max_alive=draw(st.sampled_from([UNBOUNDED, UNBOUNDED, 5])), classes=draw(class_specs),
    )  # fmt: skip
    times = draw(st.sampled_from([SLOPE, SLOPE, PROFILES[-1], ()]))
    cell = Stage(Profile(times, handover_ns=draw(st.sampled_from([None, 0, 30]))), repeats=True)
    before = draw(st.sampled_from([(), (), (Stage(Profile((20, 25, 30))),)]))
    policy, most = draw(st.sampled_from(["adaptive", "adaptive", "late", "no_wait"])), draw(st.sampled_from([3, 8]))
    program = make_program(stages=(*before, cell), policy=policy, max_batch=most)
    fails = draw(st.booleans())
    arrivals, at = [], 0
    for _ in range(draw(st.integers(2, 12))):
        at += draw(st.sampled_from([0, 1, 300, 900]))
        length = draw(st.sampled_from([1, 2, 9, 30]))
        cancel = draw(st.none() | st.integers(0, 2_000))
        bad = frozenset({0}) if fails and draw(st.integers(0, 4)) == 0 else frozenset[int]()
        klass = draw(st.sampled_from([Klass.REALTIME, Klass.REALTIME, Klass.BEST_EFFORT]))
        arrivals.append(
            Arrival(at, 1, (length,) * draw(st.integers(1, 3)), klass, cancel=cancel, steps=length, bad=bad,
                    well=draw(st.integers(0, 12)))
        )  # fmt: skip
    return Trace(device, (program,), tuple(arrivals), seed=draw(st.sampled_from([None, 1, 2, 3])))


@repeatable(120)
@given(cells())
def test_invariants_hold_in_cells_that_are_late_and_fail(trace: Trace) -> None:
    world = World(trace).run()
    if world.book.most_failures < 3 * trace.programs[0].max_batch:  # else it counts as broken, and units fail whole
        for ident, arrival in enumerate(trace.arrivals):
            fails = arrival.bad and (arrival.well < arrival.steps or len(trace.programs[0].stages) > 1)
            assert world.how(ident) in ("model" if fails else "done", "cancelled")


@CI
@given(traces(), st.sampled_from(sorted(POLICIES)))
def test_bad_row_fails_only_its_own_call(trace: Trace, policy: str) -> None:
    calm = tuple(Arrival(a.at, 1, a.lengths, a.klass, a.priority, bad=a.bad) for a in trace.arrivals)
    device = for_ebird(trace.device) if policy == "ebird" else trace.device
    world = World(Trace(device, (make_program(policy=policy, max_delay_ns=50),), calm)).run()
    if world.book.most_failures >= 3 * world.trace.programs[0].max_batch:  # it counts as broken: units fail whole
        return
    assert [world.how(i) for i in range(len(calm))] == ["model" if arrival.bad else "done" for arrival in calm]


@FEW
@given(traces())
def test_replay_of_the_record_gives_equal_steps(trace: Trace) -> None:
    lines = [json.dumps(entry) for entry in World(trace).run().entries]
    replayed = replay(lines)
    assert replayed.same, replayed
    assert replayed.equal == sum('"step"' in line for line in lines)


@pytest.mark.parametrize("policy", POLICIES)
def test_storm_of_cancels_leaves_nothing_behind(policy: str) -> None:
    """While the only worker is busy, thousands come and go; what stays is bounded by what waits."""
    scheduler = scheduler_of(make_program(policy=policy, max_delay_ns=0), device=make_device(1))
    scheduler.submit(make_call(0, deadline=10**8), 0)  # the next deadline: those behind it are not looked at
    assert len(scheduler.step(0).start) == 1
    for ident in range(1, few(5_000) + 1):
        scheduler.submit(make_call(ident, 2, arrived=ident, deadline=10**9, priority=ident % 3), ident)
        scheduler.cancel(ident, ident)
        scheduler.step(ident)
    assert sum(scheduler.states[1].queue.waiting) == 0
    assert scheduler._ledger.alive == 1
    assert not any(ready._entries for ready in scheduler._ledger.ready._sets.values())
    assert len(scheduler._ledger.deadlines.heap) <= 70
