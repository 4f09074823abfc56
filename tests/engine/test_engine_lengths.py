"""Rows of different lengths, and models in stages: what shares a batch, and what is left of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import affine, virtual

from app.contract import Model, ModelCall, awaited
from app.engine.memory import Memory

from .rig import Rig, make_model, serving, tensor

# Invariant: requests of different lengths share batches and never see it, and memory of any length goes with them.


def ragged(bound: int, **batching: Any) -> Model:
    """Doubles its values, and sums each row under a mask that the server makes."""

    def doubled(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, (x * mask).sum(dim=1)

    x, mask = tensor("x", "FP32", ("n", bound), pad_value=9), tensor("mask", "FP32", ("n", bound), mask_of="x")
    outputs = [tensor("doubled", "FP32", ("n", bound)), tensor("total", "FP32")]
    return make_model(doubled, [x, mask], outputs, **batching)


@virtual
async def test_rows_of_one_call_may_differ_in_length() -> None:
    """Each is scheduled, padded and masked by its own length; what lies beyond it in the answer is not the row's."""
    async with serving(ragged(bound=16, length_buckets=(2, 16))) as rig:
        served = rig.served
        values = np.array([[1, 7, 7, 7], [2, 3, 4, 5], [6, 8, 7, 7]], np.float32)
        with served.lease(ModelCall(3, [values], lengths={"n": 4}, own_lengths={"n": [1, 4, 2]})) as lease:
            assert [row.length for row in lease.rows] == [1, 4, 2]
            answer = await awaited(lease)
        assert sorted(rig.rows_pushed()) == [1, 2]  # by their buckets
        assert answer.outputs[1].tolist() == [1, 14, 14]
        assert [row[:n].tolist() for row, n in zip(answer.outputs[0], (1, 4, 2), strict=True)] == [
            [2], [4, 6, 8, 10], [12, 16],
        ]  # fmt: skip
        assert answer.outputs[0].shape == (3, 4)


@virtual
async def test_rows_may_differ_along_any_axis_with_or_without_a_bound() -> None:
    def both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + 1, b + 1

    a, b = tensor("a", "FP32", ("n", 0)), tensor("b", "FP32", ("m", 8))
    outputs = [tensor("c", "FP32", ("n", 0)), tensor("d", "FP32", ("m", 8))]
    async with serving(make_model(both, [a, b], outputs, max_batch=1)) as rig:
        own = {"n": [1, 3], "m": [3, 1]}  # each row's longest is 3
        sent = [np.array([[1, 9, 9], [2, 3, 4]], np.float32), np.array([[5, 6, 7], [8, 9, 9]], np.float32)]
        with rig.served.lease(ModelCall(2, [*sent], lengths={"n": 3, "m": 3}, own_lengths=own)) as lease:
            answer = await awaited(lease)
        assert [array.tolist() for array in answer.outputs] == [[[2, 0, 0], [3, 4, 5]], [[6, 7, 8], [9, 0, 0]]]


# Models in stages, from the call to the answer: rows join and leave at boundaries; nothing is left between.


def staged(**options):
    return make_model(stages=[lambda x: x * 2, lambda x: x + 1], **options)


def units(rig: Rig) -> list[tuple[int, int]]:
    """(stage, rows) of each unit that was pushed."""
    return [(pushed.job.stage, pushed.rows) for pushed in rig.device.pushed]


@virtual
async def test_memory_between_stages_bounds_the_rows_that_start(caplog: pytest.LogCaptureFixture):
    """A row has 8 bytes between the two stages, counted twice: 3 rows fit in 50."""
    async with serving(staged(), memory=Memory(activations=50)) as rig:
        await asyncio.gather(*(rig.ask(float(value)) for value in range(10, 15)))
        assert units(rig) == [(0, 3), (1, 3), (0, 2), (1, 2)]
        assert "model m: a batch of 4 rows takes 0.0 MiB between stages" in caplog.text
        assert "cut to 3 rows" in caplog.text


@virtual
async def test_statistics_have_the_stage():
    async with serving(staged(), make_model(name="whole")) as rig:
        await rig.ask(10.0, 20.0)
        running = rig.ask(30.0)
        await rig.loop.turn(2)
        shown = rig.served.statistics()
        assert (shown["inference_count"], shown["execution_count"]) == (2, 1)
        assert shown["starling"]["stages"] == [
            {"rows_waiting": 0, "rows_running": 1, "batches": {"2": 1}, "operations": {"new": 1}},
            {"rows_waiting": 0, "rows_running": 0, "batches": {"2": 1}, "operations": {"on": 1}},
        ]
        assert "stages" not in rig.models[1].statistics()["starling"]
        first, whole = rig.engine.snapshot().models
        assert (first.activations.rows, whole.activations) == (0, None)
        await running


@virtual
async def test_boundaries_have_the_values_of_the_whole_models_table():
    """What `adaptive` decides between stages by, in a server as in the simulator."""
    async with serving(staged(policy="adaptive"), make_model(name="whole", policy="adaptive")) as rig:
        for served in rig.models:  # as if they had been measured
            served.profiled.profile = replace(served.profiled.profile, errors=(0.01,) * 4)
            rig.engine.profiling._want_tables(served.profiled)
        await rig.loop.turn(3)
        first, second = (rig.engine.scheduler.states[served.program].estimates for served in rig.models)
        assert first.control.values
        assert first.curves.remaining == ((2200000, 2400000, 2600000, 2800000), tuple(map(affine, (1, 2, 3, 4))))
        assert not second.control.values
