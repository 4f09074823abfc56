"""What stages on a CPU do to memory; conformance/test_any_order.py has the answers of rows in any batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.contract import Model
from app.engine.cpu.staged import StagedExecutor
from app.engine.pool import Pool
from app.errors import ConfigError

from ..rig import make_model, rows_of


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


def test_what_a_stage_must_not_pass_on_fails_its_unit():
    executor = filled(lambda x: x[:1], increase)
    with pytest.raises(ConfigError, match="stage 0: value 0: expected 2 rows first"):
        executor.run([0, 1], 2, 0)
    assert executor.activations.rows == 0


# lengths
