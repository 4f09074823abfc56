"""Invariant: what a call reads of its rows while they run, piece by piece, is what its answer has, each step once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from app.contract import Array, Model
from app.engine.cpu import cells
from app.engine.served_model import ServedModel
from app.errors import ModelFailed
from app.models import Recurrent

from .rig import recurrent, tensor
from .test_engine_cells import LONG, Gate, Sums, serving


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are due after each step."""
    monkeypatch.setattr(cells, "_PIECE_NS", 0)


class Twice(Sums):
    """Gives out the sum so far at each step, and the last one."""

    def step(self, x: torch.Tensor, state: Any) -> Any:
        y, state = super().step(x, state)
        return (y.clone(), y.clone()), state


def twice(cell: Any) -> Model:
    outputs = [tensor("last", "FP32"), tensor("sums", "FP32", ("n", LONG))]
    return recurrent(Recurrent(cell, ((),)), [tensor("x", "FP32", ("n", LONG))], outputs)


class Reading:
    """A call that reads along: the pieces of each row joined, and how many came."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self.rows: dict[int, list[Array]] = {}
        self.steps: dict[int, list[int]] = {}

    async def ask(self, values: Array) -> list[Array]:
        with self._served.lease(len(values), lengths={"n": values.shape[1]}) as lease:
            lease.on_piece = self._take
            lease.write(0, values)
            return (await lease.run()).outputs

    def _take(self, row: int, made: list[Array], steps: int) -> None:
        self.rows.setdefault(row, []).append(made[0])
        self.steps.setdefault(row, []).append(steps)

    def read(self, row: int) -> Array:
        return np.concatenate(self.rows[row])


async def test_rows_that_join_and_leave_are_read_step_by_step() -> None:
    cell = Twice()
    async with serving(twice(cell)) as served:
        assert served.model.streams == (1,)
        readers = [Reading(served) for _ in range(4)]
        asked = [np.arange(2 * n, dtype=np.float32).reshape(2, n) for n in (40, 3, 9, 1)]
        answers = await asyncio.gather(*(reader.ask(values) for reader, values in zip(readers, asked, strict=True)))
        for reader, values, (last, sums) in zip(readers, asked, answers, strict=True):
            assert (sums == values.cumsum(1)).all()
            for row in range(2):
                read = reader.read(row)
                assert read.tolist() == sums[row, : len(read)].tolist()
                assert len(read) == reader.steps[row][-1] == values.shape[1]  # the last step, too, before its unit ends
            assert last.tolist() == sums[:, -1].tolist()
        assert served.pool.used == 0


async def test_pieces_come_while_the_unit_runs() -> None:
    cell = Twice()
    async with serving(twice(cell)) as served:
        reader, gate = Reading(served), Gate(cell, 6)
        call = asyncio.create_task(reader.ask(np.ones((1, LONG), np.float32)))
        await gate.reached()
        await asyncio.sleep(0)
        assert reader.read(0).tolist() == [1, 2, 3, 4, 5]
        gate.open()
        assert (await call)[0].tolist() == [LONG]


async def test_steps_that_are_made_again_are_read_once() -> None:
    """One row fails at its fifth step: the steps before it are made again."""
    async with serving(twice(Twice())) as served:
        good, bad = Reading(served), Reading(served)
        values = np.ones((1, 12), np.float32)
        poisoned = values.copy()
        poisoned[0, 4] = -1
        (_, sums), failed = await asyncio.gather(good.ask(values), bad.ask(poisoned), return_exceptions=True)  # type: ignore[misc]
        assert isinstance(failed, ModelFailed)
        assert good.read(0).tolist() == sums[0].tolist() == list(range(1, 13))
        assert bad.read(0).tolist() == [1, 2, 3, 4]
