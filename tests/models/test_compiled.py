"""Invariant: what is compiled depends on whether there is one row or value, or more, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.models.checks.samples import example_row
from app.models.compiled import Compiled, shortest


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What has been compiled: torch's front end alone, the graphs run as they are."""
    made: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return made


def test_tensors_of_any_origin_and_layout_are_one(graphs: list[Any]) -> None:
    def double(x: torch.Tensor, pair: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return x * 2 + pair[0]

    call, slots = Compiled(double), torch.arange(80.0).view(8, 10)
    with torch.inference_mode():
        for rows in (1, 3, 7):
            made = torch.arange(5.0).repeat(rows, 1)
            ways = (slots[:rows, :5], made, made.T.contiguous().T, made[:1].expand(rows, 5), slots[::10, :5])
            for x in ways:
                for other in ways:
                    if len(x) == len(other):
                        assert torch.equal(call(x, (other,)), x * 2 + other)
    assert len(graphs) == 2, "one row, and more"


@pytest.mark.parametrize(("max_batch", "sizes"), [(8, [1, 2]), (1, [1])])
def test_rows_of_one_value_are_compiled_before_it_serves(max_batch: int, sizes: list[int], graphs: list[Any]) -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 2), ("t", ""), (32, 2)),)
    info = ModelInfo("m", "1", "test", inputs, inputs, Batching(max_batch=max_batch))
    row = example_row(inputs)
    found = list(shortest(Model(info, Compiled(nn.Identity())), row))
    assert [(one.lengths, size) for one, size in found] == [({"t": 1}, size) for size in sizes]
    assert found[0][0].arrays[0].shape == (1, 2)
    assert not list(shortest(Model(info, nn.Identity()), row))
