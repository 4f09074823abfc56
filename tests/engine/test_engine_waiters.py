"""Invariant: who waits for an answer is told once, when the call's slots are free, and its trouble is nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fakes import HANGS, MS, FakeDevice, virtual, virtual_loop

from app.contract import Answer, Lease
from app.engine.served_model import ServedModel
from app.errors import DeadlineExceeded, ModelFailed, NotReady

from .rig import POISON, answers, make_model, rows_of, serving


class Caller:
    """Waits for one call without a future, as a request on the fast path does."""

    def __init__(self, served: ServedModel, on_told: Callable[[], None] = lambda: None) -> None:
        self.served = served
        self.on_told = on_told
        self.told: list[Answer | Exception] = []
        self.slots_used = -1
        self.lease: Lease

    def call(self, value: float, **options: int) -> Caller:
        self.lease = self.served.lease(1, **options)
        self.lease.write(0, rows_of(value))
        self.lease.submit(self)
        return self

    def done(self) -> bool:
        return bool(self.told)

    def set_result(self, answer: Answer) -> None:
        self._hear(answer)

    def set_exception(self, error: Exception) -> None:
        self._hear(error)

    def _hear(self, what: Answer | Exception) -> None:
        self.told.append(what)
        self.slots_used = self.served.pool.used
        self.lease.close()
        self.on_told()


@virtual
async def test_an_answer_comes_when_the_slots_are_free():
    async with serving(make_model(max_batch=4)) as rig:
        callers = [Caller(rig.served).call(float(value)) for value in (10, 11, 12)]
        await rig.loop.passes(50 * MS)
        for value, caller in zip((10, 11, 12), callers, strict=True):
            (answer,) = caller.told
            assert isinstance(answer, Answer)
            assert np.array_equal(answer.outputs[0], answers(rows_of(float(value))))
            assert caller.slots_used == 0
        rig.assert_settled()


@pytest.mark.parametrize("value", [10.0, POISON])
@virtual
async def test_a_caller_that_raises_ends_neither_the_step_nor_the_answers_behind_it(value, caplog):
    """Also one that fails to take its error, and one that calls again while it is told."""

    def trouble() -> None:
        raise RuntimeError("a caller's own trouble")

    async with serving(make_model(max_batch=4)) as rig:
        again = Caller(rig.served)
        first = Caller(rig.served, trouble).call(value)
        second = Caller(rig.served, lambda: again.call(13.0) and None).call(11.0)
        await rig.loop.passes(100 * MS)
        assert isinstance(first.told[0], ModelFailed if value == POISON else Answer)
        for caller, asked in ((second, 11.0), (again, 13.0)):
            (answer,) = caller.told
            assert isinstance(answer, Answer)
            assert np.array_equal(answer.outputs[0], answers(rows_of(asked)))
        (record,) = [record for record in caplog.records if record.exc_info]
        assert "a caller failed to take its" in record.getMessage()
        rig.assert_settled()


@virtual
async def test_a_dropped_call_has_freed_its_slots_before_its_caller_hears_of_it():
    """The queue holds one row: the caller takes its place again at once."""
    device = FakeDevice(virtual_loop(), 1, fate=lambda pushed: HANGS)
    async with serving(make_model(max_batch=1, max_queue=1), device=device) as rig:
        running = Caller(rig.served).call(9.0)
        await rig.loop.turn(2)
        used = rig.served.pool.used
        again = Caller(rig.served)
        dropped = Caller(rig.served, lambda: again.call(12.0) and None).call(11.0, timeout_us=100_000)
        await rig.loop.passes(200 * MS)
        assert isinstance(dropped.told[0], DeadlineExceeded)
        assert dropped.slots_used == used
        device.release()
        await rig.loop.turn(5)
        device.release()
        await rig.loop.passes(200 * MS)
        assert isinstance(again.told[0], Answer)
        assert isinstance(running.told[0], Answer)
        rig.assert_settled()


@virtual
async def test_a_call_that_comes_when_none_is_taken_any_more_fails_at_once():
    async with serving(make_model(max_batch=1)) as rig:
        caller = Caller(rig.served)
        caller.lease = rig.served.lease(1)
        caller.lease.write(0, rows_of(10.0))
        rig.engine.abort("the end")
        caller.lease.submit(caller)
        assert isinstance(caller.told[0], NotReady)
        assert rig.served.pool.used == 0
        assert rig.served.reserved == [0, 0]
