"""Invariant: a client that goes frees what it held, but never a slot that a unit reads, and disturbs nobody else.

Whoever waits for an answer gets it once, when the call's slots are free, and its trouble is nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import MS, virtual

from app.contract import Answer, Lease
from app.engine.served_model import ServedModel
from app.errors import BadRequest, ClientGone, DeadlineExceeded, ModelFailed

from .rig import POISON, Affine, assert_answer, device, make_model, rows_of, serving, tensor


@pytest.mark.parametrize("running", [True, False])
@virtual
async def test_a_client_who_goes_is_forgotten_while_waiting_and_ends_unheard_while_running(running: bool):
    model = Affine()
    async with serving(make_model(model, max_batch=2), device=device(2, hangs=True)) as rig:
        stays = rig.ask(10.0) if running else rig.ask(8.0, 9.0)
        if not running:
            await rig.loop.turn(2)
        with rig.served.lease(1) as lease:
            lease.write(0, rows_of(11.0))
            call = lease.run()
            await rig.loop.turn(2)
            lease.cancel()
            with pytest.raises(ClientGone):
                await call
        assert rig.served.pool.used == 2  # of the unit that runs
        rig.device.release()
        assert_answer(await stays, *([10.0] if running else [8.0, 9.0]))
        await rig.loop.passes(10 * MS)
        assert model.saw(11.0) == running
        rig.assert_settled()


@virtual
async def test_slots_are_given_back_once():
    """By a lease that was never run, one that is closed twice, and one that is cancelled after its answer."""
    async with serving() as rig:
        with pytest.raises(ValueError, match="broadcast"), rig.served.lease(2) as lease:
            lease.write(0, np.zeros((2, 3), np.float32))
        rig.assert_settled()
        lease, other = rig.served.lease(2), rig.served.lease(1)
        lease.close()
        lease.close()
        assert rig.served.pool.used == 1
        other.write(0, rows_of(10.0))
        answer = await other.run()
        other.cancel()
        other.close()
        assert_answer(answer, 10.0)
        rig.assert_settled()


# callers without a future


class Caller:
    """Waits for one call as a request on the fast path does."""

    def __init__(self, served: ServedModel, on_end: Callable[[], object] = lambda: None) -> None:
        self.served = served
        self.on_end = on_end
        self.ends: list[Answer | Exception] = []
        self.slots_used = -1
        self.lease: Lease

    def call(self, value: float, **options: int) -> Caller:
        self.lease = self.served.lease(1, **options)
        self.lease.write(0, rows_of(value))
        self.lease.submit(self)
        return self

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, answer: Answer) -> None:
        self._end(answer)

    def set_exception(self, error: Exception) -> None:
        self._end(error)

    def _end(self, what: Answer | Exception) -> None:
        self.ends.append(what)
        self.slots_used = self.served.pool.used
        self.lease.close()
        self.on_end()


@pytest.mark.parametrize("value", [10.0, POISON])
@virtual
async def test_a_caller_that_raises_ends_neither_the_step_nor_the_answers_behind_it(value: float, caplog):
    """Also one that fails to take its error, and one that calls again at once: its slots are free by then."""

    def trouble() -> None:
        raise RuntimeError("a caller's own trouble")

    async with serving(make_model(max_batch=4)) as rig:
        again = Caller(rig.served)
        first = Caller(rig.served, trouble).call(value)
        second = Caller(rig.served, lambda: again.call(13.0)).call(11.0)
        await rig.loop.passes(100 * MS)
        assert isinstance(first.ends[0], ModelFailed if value == POISON else Answer)
        for caller, asked in ((second, 11.0), (again, 13.0)):
            (answer,) = caller.ends
            assert_answer(answer, asked)
            assert caller.slots_used == 0
        (record,) = [record for record in caplog.records if record.exc_info]
        assert "a caller failed to take its" in record.getMessage()
        rig.assert_settled()


@virtual
async def test_a_dropped_call_has_freed_its_slots_before_its_caller_gets_the_error():
    """The queue holds one row: the caller takes its place again at once."""
    async with serving(make_model(max_batch=1, max_queue=1), device=device(1, hangs=True)) as rig:
        running = Caller(rig.served).call(9.0)
        await rig.loop.turn(2)
        used = rig.served.pool.used
        again = Caller(rig.served)
        dropped = Caller(rig.served, lambda: again.call(12.0)).call(11.0, timeout_us=100_000)
        await rig.loop.passes(200 * MS)
        assert isinstance(dropped.ends[0], DeadlineExceeded)
        assert dropped.slots_used == used
        for _ in range(2):
            rig.device.release()
            await rig.loop.turn(5)
        await rig.loop.passes(200 * MS)
        assert_answer(again.ends[0], 12.0)
        assert_answer(running.ends[0], 9.0)
        rig.assert_settled()


# values

IDS = replace(tensor("ids", "INT32", ("n", 4)), minimum=2, maximum=9)


@virtual
async def test_a_value_out_of_range_never_reaches_the_model():
    """As an array and as bytes; its slots are free again, and the rows beside it are answered."""
    seen: list[int] = []

    def call(ids: torch.Tensor) -> torch.Tensor:
        seen.extend(ids.flatten().tolist())
        return ids.sum(1, keepdim=True)

    async with serving(make_model(call, [IDS], [tensor("sum", "INT64", 1)])) as rig:
        rows = np.array([[3, 4], [5, 10]], np.int32)
        for sent in (rows, memoryview(rows.tobytes())):
            with rig.served.lease(2, lengths={"n": 2}) as lease, pytest.raises(BadRequest, match="from 2 to 9, got 10"):
                lease.write(0, sent)
        assert rig.served.pool.used == 0
        with rig.served.lease(2, lengths={"n": 2}) as lease:
            lease.write(0, memoryview(np.array([[3, 4], [5, 9]], np.int32).tobytes()))
            assert (await lease.run()).outputs[0].tolist() == [[7], [14]]
        assert 10 not in seen
        rig.assert_settled()
