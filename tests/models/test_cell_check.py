"""Rows must be independent at every step of a cell, whatever steps their neighbours are at; the message names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models import Recurrent
from app.models.recurrent.cells import recurrent_model

from .folders import try_out

X = TensorSpec("x", "FP32", (-1, 2), ("time", ""), (32, 2))
IDS = TensorSpec("ids", "INT64", (-1,), ("time",), (32,), minimum=0, maximum=9)
LAST = TensorSpec("y", "FP32", (2,), ("",), (2,))
WRITTEN = TensorSpec("text", "INT64", (-1,), ("written",), (0,))


class Sum:
    def step(self, x: torch.Tensor, state: Any) -> Any:
        total = state[0] + x
        return total, (total,)


def model(cell: Any, *, inputs: Any = (X,), outputs: Any = (LAST,), state: Any = ((2,),), max_steps: int | None = None,
          row_check: str = "refuse", max_batch: int = 8) -> Model:  # fmt: skip
    info = ModelInfo("m", "1", "test", tuple(inputs), tuple(outputs), Batching(max_batch=max_batch))
    call, info = recurrent_model(Recurrent(cell, state, max_steps), info)
    return Model(info, call, row_check=row_check)


class Centred(Sum):
    """The batch's mean goes into each row."""

    def step(self, x: torch.Tensor, state: Any) -> Any:
        return super().step(x - x.mean(0), state)


class Foremost(Sum):
    """Takes the first row's step for that of all rows, as if they had begun together."""

    def start(self, x: torch.Tensor) -> Any:
        return x, (torch.zeros(len(x), 2), torch.zeros(len(x)))

    def step(self, x: torch.Tensor, state: Any) -> Any:
        total = state[0] + x * (state[1][:1] + 1)[:, None]
        return total, (total, state[1] + 1)


class Clock(Sum):
    """Counts steps in the cell."""

    def start(self, x: torch.Tensor) -> Any:
        self.steps = 0
        return x, (torch.zeros(len(x), 2),)

    def step(self, x: torch.Tensor, state: Any) -> Any:
        self.steps += 1
        return super().step(x * self.steps, state)


class Spread(Sum):
    """A neighbour times 0 is nothing, but for one of NaN."""

    def step(self, x: torch.Tensor, state: Any) -> Any:
        return super().step(x + 0 * state[0].sum(0), state)


class SpreadAtStart(Sum):
    def start(self, x: torch.Tensor) -> Any:
        return x + 0 * x.sum(0), (torch.zeros(len(x), 2),)


class SpreadAtFinish(Sum):
    def finish(self, state: Any, ys: torch.Tensor, lengths: torch.Tensor) -> Any:
        return state[0] + 0 * ys.sum((0, 1))


COMPANY = r"the other rows of its batch: output 'y': .* alone, .* at step \d+ beside (a row|rows) at steps? \d"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Centred(), COMPANY),
        (Foremost(), COMPANY),  # the row check of the whole passes: all of its rows are at one step
        (Spread(), r"output 'y': .* alone, nan at step 1 with NaN and infinity in the place of its neighbours"),
        (SpreadAtStart(), "output 'x': .* alone, nan before step 1 with NaN"),
        (SpreadAtFinish(), "output 'y': .* alone, nan after its last step with NaN"),
        (Clock(), "a step of the cell depends on the steps that it made before, .* Keep nothing in the cell"),
    ],
)
def test_a_step_that_looks_at_other_rows_is_named(cell: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        try_out(model(cell, state=((2,), ()) if isinstance(cell, Foremost) else ((2,),)))


def test_cells_of_independent_rows_pass() -> None:
    class Ends:
        def start(self, ids: torch.Tensor) -> Any:
            return None, (ids.sum(1),)

        def step(self, x: None, state: Any) -> Any:
            return state[0], (state[0] - 1,), state[0] <= 0

    assert try_out(model(Sum())) == []
    assert try_out(model(Sum(), max_batch=2)) == []
    assert try_out(model(Centred(), max_batch=1)) == []
    assert try_out(model(Ends(), inputs=(IDS,), outputs=(WRITTEN,), state=((),), max_steps=200)) == []


def test_one_that_takes_no_row_of_one_step_passes() -> None:
    class Pairs(Sum):
        def start(self, x: torch.Tensor) -> Any:
            if x.shape[1] < 2:
                raise ValueError("too short")
            return x, (torch.zeros(len(x), 2),)

    assert try_out(model(Pairs())) == []
