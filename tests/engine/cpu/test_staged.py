"""What stages on a CPU do to memory; conformance/test_any_order.py has the answers of rows in any batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.contract import Model
from app.engine.cpu.staged import StagedExecutor
from app.engine.pool import Pool
from app.errors import ConfigError

from ..rig import make_model, rows_of, tensor

TOKENS = tensor("ids", "INT64", ("tokens", 12))
MASK = tensor("mask", "INT64", ("tokens", 12), mask_of="ids")
SUM = tensor("y", "FP32")


def make(model: Model, slots: int = 8) -> StagedExecutor:
    return StagedExecutor(model, Pool(model.info.client_inputs, slots))


def filled(*stages, slots: int = 8) -> StagedExecutor:
    """An executor over inputs of X's kind, whose slot i holds the row of 10 + i."""
    executor = make(make_model(stages=stages), slots)
    executor.pool.write(range(slots), 0, rows_of(*[10.0 + i for i in range(slots)]))
    return executor


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def increase(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_a_stage_that_writes_into_what_came_through_unchanged_leaves_the_slots_alone():
    executor = filled(lambda x: (x, x * 2), lambda x, y: x.zero_() + y + 1)
    executor.trial([0], 1)
    before = executor.pool.views[0].copy()
    executor.run(range(4), 4, 0)
    executor.run(range(4), 4, 1)
    assert np.array_equal(executor.pool.views[0], before)


def test_memory_goes_with_the_last_row_of_its_batch():
    executor = filled(double, increase)
    executor.run(range(4), 4, 0)
    assert (executor.activations.rows, executor.activations.nbytes) == (4, 4 * 2 * 4)
    executor.activations.let_go([0, 1, 2])
    assert executor.activations.nbytes == 4 * 2 * 4
    executor.activations.let_go([3, 3, 7])
    assert (executor.activations.rows, executor.activations.nbytes) == (0, 0)


def test_what_a_stage_must_not_pass_on_fails_its_unit():
    executor = filled(lambda x: x[:1], increase)
    with pytest.raises(ConfigError, match="stage 0: value 0: expected 2 rows first"):
        executor.run([0, 1], 2, 0)
    assert executor.activations.rows == 0


# lengths


def of_lengths(*stages, **options) -> StagedExecutor:
    """Slot i holds 12 - i tokens of value i + 1. Two lengths have been tried, as warm-up does."""
    executor = make(make_model(inputs=[TOKENS, MASK], outputs=[SUM], stages=stages, **options))
    for slot in range(8):
        executor.pool.write([slot], 0, np.full((1, 12 - slot), slot + 1, np.int64))
        executor.pool.set_lengths([slot], {"tokens": 12 - slot})
    executor.trial([0], 1)
    executor.trial([7], 1)
    return executor


def sums(slots) -> list[float]:
    return [(slot + 1) * (12 - slot) * 6.0 for slot in slots]


class Context:
    """Whether each place has a value, made of the mask; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        return ((1 - mask)[:, None, :],)


def with_context() -> tuple[StagedExecutor, Context]:
    """Three stages, of which the first and the last take the context, and the last the ids again."""

    def first(ids: torch.Tensor, mask: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
        assert torch.equal(absent[:, 0], 1 - mask)
        return ids.float()[..., None].expand(-1, -1, 3) + 7

    def last(hidden: torch.Tensor, ids: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
        present = (1 - absent)[:, 0]
        assert torch.equal((hidden[..., 0] - 7) * present, (ids * present).float())
        return ((hidden - 7) * present[..., None]).sum((1, 2)) * 2

    made = Context()
    return of_lengths(first, lambda hidden: hidden, last, again=[(2,), (), (0, 2)], context=made), made


def test_the_context_is_made_once_while_the_batch_stays_as_it_is():
    executor, made = with_context()
    calls = made.calls
    for stage in range(3):
        executor.run([2, 3, 4], 3, stage)
    assert made.calls == calls + 1
    executor.run([2, 3, 4], 3, 0)
    executor.run([3, 2, 4], 3, 1)
    executor.run([2, 4], 2, 2)
    assert made.calls == calls + 4
