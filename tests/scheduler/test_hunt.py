"""The invariants find a fault that is put there, and what the hunt by seed has found is mended."""

from __future__ import annotations

import pytest
from hunt import main

from app.scheduler.estimates.profile import Profile
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import AT_ONCE, ClassSpec, Klass, Row, Stage

from .test_invariants import BY_LENGTH, PER_TOKEN, tables
from .world import Arrival, Trace, World, make_device, make_program


def test_a_fault_that_is_put_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here rows that run again lose their place on the device."""
    right = Ledger.retry

    def retry(self: Ledger, rows: list[Row], state: ProgramState) -> None:
        right(self, rows, state)
        self.alive += len(rows)

    trace = Trace(make_device(2), (make_program(max_batch=2),), (Arrival(0, lengths=(2, 2)),), oom_above=1)
    World(trace).run()
    monkeypatch.setattr(Ledger, "retry", retry)
    with pytest.raises(AssertionError):
        World(trace).run()


def test_seeds_without_a_fault_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first", "3"]) == 0
    assert "1 seeds, 4 traces, 0 faults" in capsys.readouterr().out


CELL, KNOWN = Stage(repeats=True), Stage(Profile((100,)), repeats=True)
THREE = make_device(1, 1, 1, multi_step=True, max_alive=5, classes=ClassSpec(budget_ns=100))
#: Traces that the hunt has found, each with what it broke.
FOUND = {
    "a-shorter-row-goes-before-one-that-runs-again-and-waits-for-the-budget": Trace(
        make_device(1, 2, 2, max_alive=5, classes=ClassSpec(budget_ns=100)),
        (make_program(stages=(KNOWN,), policy="preferred", max_batch=2, max_queue=4, max_delay_ns=0, max_alive=3),),
        (Arrival(0, lengths=(2,)), Arrival(0, lengths=(6, 12, 2), klass=Klass.BEST_EFFORT)),
        oom_above=0, inputs=((0, "reprofile", (1, BY_LENGTH)),),
    ),
    "tables-of-two-workers-for-unknown-times": Trace(
        make_device(1, 1, max_running=3, max_alive=2),
        (make_program(policy="window", max_batch=1, max_queue=4, max_delay_ns=0),),
        (Arrival(0, lengths=(2, 2, 2)),),
        inputs=((0, "control", (1, next(one for one in tables() if one.workers == 2))),
                (0, "reprofile", (1, Profile((100,)))), (30, "reprofile", (1, Profile()))),
    ),
    "a-batch-is-held-for-a-row-before-its-cell-that-has-no-room": Trace(
        make_device(2, max_alive=2),
        (make_program(stages=(KNOWN, Stage(Profile((100,)))), policy="dva_load", max_batch=2, max_delay_ns=0),),
        (Arrival(0, lengths=(2, 2), klass=Klass.BEST_EFFORT),),
    ),
    "a-unit-of-a-call-that-is-dropped-goes-unrecalled": Trace(
        make_device(1, push_depth=2, push_ahead_ns=AT_ONCE, multi_step=True, max_alive=2),
        (make_program(stages=(CELL, Stage(), KNOWN), policy="dva_input", max_batch=1,
                      max_queue=4, max_delay_ns=0),),
        (Arrival(0, lengths=(2,)), Arrival(0, lengths=(2,), klass=Klass.BEST_EFFORT),
         Arrival(0, lengths=(2, 2), timeout=500)),
    ),
    "steps-to-come-of-two-cell-units-exceed-the-budget": Trace(
        THREE,
        (make_program(stages=(Stage(Profile((50,), handover_ns=30), repeats=True),), max_batch=1),),
        tuple(Arrival(0, lengths=(2,), klass=Klass.BEST_EFFORT, steps=steps) for steps in (2, 1)),
    ),
    "a-unit-starts-beside-one-of-unknown-time": Trace(
        THREE,
        (make_program(stages=(Stage(),) * 2, policy="window", max_batch=1, max_delay_ns=0),),
        (Arrival(0, lengths=(2, 2), klass=Klass.BEST_EFFORT),),
        inputs=((30, "reprofile", (1, Profile((60,)))),),
    ),
    "a-best-effort-unit-goes-on-into-a-stage-of-unknown-time": Trace(
        THREE,
        (make_program(stages=tuple(Stage(Profile(times)) for times in ((100,), (), (100,))), policy="window",
                      max_batch=1, max_delay_ns=0),),
        (Arrival(0, lengths=(2, 2), klass=Klass.BEST_EFFORT),),
    ),
    "a-longer-row-starts-in-place-of-one-without-room-and-exceeds-the-budget": Trace(
        make_device(2, classes=ClassSpec(budget_ns=100)),
        (make_program(stages=(Stage(BY_LENGTH, repeats=True),), policy="no_wait", max_batch=2, max_alive=3),),
        (Arrival(0, lengths=(2, 12), klass=Klass.BEST_EFFORT, priority=1, steps=2),
         Arrival(40, lengths=(2,), klass=Klass.BEST_EFFORT)),
    ),
    "a-best-effort-unit-goes-on-into-a-stage-that-its-long-row-makes-slow": Trace(
        THREE,
        (make_program(stages=(Stage(Profile((20,), by_length=((12, (20,)),))), Stage(PER_TOKEN)), max_batch=1),),
        (Arrival(0, lengths=(12, 12), klass=Klass.BEST_EFFORT),),
    ),
    "a-unit-starts-behind-one-that-a-better-row-waits-to-join": Trace(
        make_device(1, push_depth=2, push_ahead_ns=AT_ONCE, multi_step=True),
        (make_program(stages=(Stage(), CELL), policy="no_wait", max_batch=1),
         make_program(2, stages=(Stage(), Stage()), policy="no_wait", max_batch=1)),
        (Arrival(0, lengths=(3, 3), steps=3), Arrival(150, program=2, priority=1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("trace", FOUND.values(), ids=FOUND)
def test_what_was_found_is_mended(trace: Trace) -> None:
    World(trace).run()
