"""Invariant: rows of a recurrent model join and leave between steps, and no row sees that there are others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from app.contract import UNBOUNDED, Array, Model
from app.engine.memory import Memory
from app.engine.served_model import ServedModel
from app.errors import DeadlineExceeded, ModelFailed
from app.models import Recurrent
from app.models.recurrent.cells import CellModel

from . import rig
from .places import on_cpu
from .rig import make_model, recurrent, tensor

LONG = 300


class Sums:
    """A row's steps added up. `each(step, rows)` is called on the worker before every step of `LONG` or of a row."""

    def __init__(self) -> None:
        self.steps = 0
        self.rows: list[int] = []
        self.each: Callable[[int], None] = lambda step: None

    def step(self, x: torch.Tensor, state: Any) -> Any:
        self.steps += 1
        self.rows.append(len(x))
        self.each(self.steps)
        if (x == -1).any():
            raise ValueError("poisoned")
        state[0].add_(x)  # a unit that fails after this runs again from where its rows were
        return state[0], (state[0],)


class Strides(Sums):
    """The same, several steps at once: 6 divided by the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[int, int]] = []  # rows, steps

    def longest_stride(self, rows: int, left: int) -> int:
        return 6 // rows if rows < 3 else 1

    def stride(self, x: torch.Tensor, state: Any) -> Any:
        self.made.append((x.shape[1], len(x)))
        ys = []
        for one in x:
            y, state = self.step(one, state)
            ys.append(y.clone())
        return torch.stack(ys), state


class NearEnd(Strides):
    """The same: one step at once, but the last three before a row ends."""

    def longest_stride(self, rows: int, left: int) -> int:
        return left if left <= 3 else 1


def sums(cell: Any, bound: int = LONG, **batching: Any) -> Model:
    inputs, outputs = [tensor("x", "FP32", ("n", bound))], [tensor("y", "FP32")]
    return recurrent(Recurrent(cell, ((),)), inputs, outputs, **batching)


async def ask(served: ServedModel, values: Array, **options: Any) -> Array:
    return (await rig.ask(served, values, **options)).outputs[0]


class Gate:
    """Halts a worker before one step, until the loop has done what it wants to do meanwhile."""

    def __init__(self, cell: Sums, step: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.reached, self.opened = asyncio.Event(), threading.Event()
        self._at = cell.steps + step
        cell.each = self._each

    def _each(self, step: int) -> None:
        if step == self._at:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.opened.wait(10)


async def begun(served: ServedModel, *lengths: int) -> list[asyncio.Task[Array]]:
    """A row of so many steps for each of these, which the scheduler has heard of."""
    tasks = [asyncio.create_task(ask(served, np.full((1, n), 7, np.float32))) for n in lengths]
    await asyncio.sleep(0)  # they are submitted
    await asyncio.sleep(0)  # and the scheduler has heard of them
    return tasks


async def ends(served: ServedModel, *rows: Array) -> list[Any]:
    """The answer to each row, or its error."""
    found = await asyncio.gather(*(ask(served, row) for row in rows), return_exceptions=True)
    assert served.pool.used == 0
    return [end if isinstance(end, BaseException) else float(end[0]) for end in found]


class TestJoining:
    @pytest.mark.parametrize("others", [[], [2]], ids=["alone", "after another has left"])
    async def test_a_short_row_does_not_wait_for_a_long_one(self, others: list[int]) -> None:
        """The scheduler knows how many steps were made."""
        cell = Sums()
        async with on_cpu(sums(cell)) as (_, served):
            gate = Gate(cell, 5)
            long, *left = await begun(served, LONG, *others)
            await gate.reached.wait()
            await asyncio.gather(*left)
            (unit,) = served.intake.scheduler.units.values()
            before = cell.steps
            (short,) = await begun(served, 1)
            assert unit.course.progress == 4 - sum(others)
            ends = asyncio.as_completed([long, short])
            gate.opened.set()
            assert [(await end).tolist() for end in ends] == [[7], [7 * LONG]]  # however late the loop is
            assert cell.rows[before - 1 : before + 2] == [1, 2, 1]  # it joins at the next step, and leaves with it
            assert served.statistics()["starling"]["stages"][0]["batches"] == {"1": 2, "2": 1 + len(others)}

    async def test_so_does_a_row_past_its_deadline(self) -> None:
        cell = Sums()
        async with on_cpu(sums(cell)) as (_, served):
            gate = Gate(cell, 5)
            waits = asyncio.ensure_future(ask(served, np.ones((1, LONG), np.float32), timeout_us=50_000))
            await gate.reached.wait()
            with pytest.raises(DeadlineExceeded, match="while it was running"):
                await waits
            before = cell.steps
            gate.opened.set()
            await served.drain()
            assert cell.steps == before


class LastState(Sums):
    """The same, by the state behind a row's last step."""

    def finish(self, state: Any, ys: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return state[0].clone()


class OwnMemory(Sums):
    """The same, in memory of the cell that it returns again with every step."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.zeros(8)

    def step(self, x: torch.Tensor, state: Any) -> Any:
        total, _ = super().step(x, (state[0].clone(),))
        result = self.memory[: len(x)].copy_(total)
        return result, (result,)


class TestEndsTogether:
    """Rows that end within a few steps of one another are finished in one call, where the worker goes on by itself."""

    @pytest.fixture
    def finished(self, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
        """The lengths of the rows of each call."""
        calls: list[list[int]] = []
        finished = CellModel.finished

        def counted(self: CellModel, state: Any, ys: Any, lengths: torch.Tensor, columns: int) -> Any:
            calls.append(lengths.tolist())
            return finished(self, state, ys, lengths, columns)

        monkeypatch.setattr(CellModel, "finished", counted)
        return calls

    @pytest.mark.parametrize("kind", [Sums, LastState, Strides, NearEnd, OwnMemory])
    @pytest.mark.parametrize(
        ("lengths", "calls"),
        [
            ((10, 20, 11, 20), [[10, 11], [20, 20]]),
            ((10, 12, 30, 20), [[10], [12], [20], [30]]),  # a row of four waits one step
            ((1, 2, 30, 30), [[1], [2], [30, 30]]),  # short ones do not wait
            ((10, 11, 12, 12), [[10, 11], [12, 12]]),  # none waits for others that wait
        ],
        ids=["one step apart", "two steps apart", "short", "all in a row"],
    )
    async def test_rows_that_end_one_step_apart_are_finished_by_one_call(self, kind, lengths, calls, finished) -> None:
        cell = kind()
        async with on_cpu(sums(cell)) as (_, served):
            finished.clear()
            cell.rows.clear()
            assert await ends(served, *(np.ones((1, n), np.float32) for n in lengths)) == list(lengths)
        assert finished == calls
        assert sum(cell.rows) == sum(lengths), "a row that waits makes no steps"


class TestFaults:
    """Steps before one that fails are made twice at most; then only its own unit of one step, and its halves, fail."""

    @pytest.mark.parametrize("kind", [Sums, Strides, NearEnd])
    @pytest.mark.parametrize("at", [0, 1, 199, 298])
    async def test_a_row_that_fails_late_costs_no_row_a_step(self, kind: type[Sums], at: int) -> None:
        cell = kind()
        async with on_cpu(sums(cell)) as (_, served):
            bad = np.ones((1, LONG), np.float32)
            bad[0, at] = -1
            before = cell.steps
            *good, failed = await ends(served, *[np.ones((1, LONG), np.float32)] * 3, bad)
            assert good == [LONG] * 3
            assert isinstance(failed, ModelFailed)
            assert cell.steps - before <= LONG + 2 * at + 20


class TestRowsWithoutABound:
    """What rows hold is known once they have come: no more of them are alive than fit into `activation_bytes`."""

    async def test_longer_rows_lower_the_number_again(self) -> None:
        cell = Sums()
        async with on_cpu(sums(cell, UNBOUNDED), memory=Memory(activations=3500)) as (_, served):
            for length, alive in ((100, 4), (200, 2), (100, 2), (LONG, 1), (50, 1)):
                await ask(served, np.ones((1, length), np.float32))
                cell.rows.clear()
                await asyncio.gather(*(ask(served, np.ones((1, 50), np.float32)) for _ in range(5)))
                assert max(cell.rows) == alive

    async def test_rows_between_two_stages_are_as_many_as_fit_once_one_has_come(self) -> None:
        batches: list[int] = []

        def last(x: torch.Tensor) -> torch.Tensor:
            batches.append(len(x))
            return x.sum(1)

        inputs, outputs = [tensor("x", "FP32", ("n", UNBOUNDED))], [tensor("y", "FP32")]
        stages = (lambda x: x + 1, last)
        model = make_model(None, inputs, outputs, stages=stages, max_batch=4)
        async with on_cpu(model, memory=Memory(activations=5000)) as (_, served):
            await ask(served, np.ones((1, LONG), np.float32))  # 1200 bytes, counted twice
            batches.clear()
            assert await ends(served, *[np.ones((1, LONG), np.float32)] * 4) == [2 * LONG] * 4
            assert batches == [2, 2]
