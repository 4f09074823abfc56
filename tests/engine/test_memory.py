"""A model's queues, one for each class, fit into the memory that its slots may take; none is cut below a batch."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.contract import Model
from app.engine.memory import MemoryLimits
from app.engine.program import note_if_over_budget
from app.scheduler.types import DeviceSpec, Profile, WorkerSpec

from .rig import X, Y, make_model, tensor

MIB = 1 << 20
IMAGE = tensor("image", "FP32", 256, 256)  # 256 KiB a row
LARGE = tensor("image", "FP32", 1024, 1024)
TEXT = tensor("t", "BYTES", 1000)
UNBOUND = tensor("x", "FP32", ("n", 0))
LONG = tensor("x", "FP32", ("n", 1000))
#: The server makes it: it needs no slots.
MASK = tensor("mask", "FP32", ("n", 1000), mask_of="x")


def fitted(model: Model, pool: int, running: int) -> Model:
    """On a worker that runs half of these rows, and has as many behind them."""
    spec = DeviceSpec((WorkerSpec(model.info.batching.max_batch),), push_depth=running // model.info.batching.max_batch)
    return MemoryLimits(pool=pool).fit(model, spec, 0)[0]


@pytest.mark.parametrize(
    ("inputs", "pool", "queue", "cut"),
    [
        ([X], 216 * 8, 100, 100),
        ([IMAGE], 10 * MIB, 1000, 12),  # 40 rows in 10 MiB, 16 of them running
        ([LARGE], MIB, 1000, 8),  # not below a batch
        ([LARGE], MIB, 2, 2),  # nor made longer
        ([TEXT], MIB, 1_000_000, 1_000_000),
        ([UNBOUND], 1, 500, 500),
        ([LONG], 400_000, 500, 42),
        ([LONG, MASK], 400_000, 500, 42),
    ],
)
def test_queues_are_cut_to_the_memory_of_slots(
    inputs: Any, pool: int, queue: int, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(None, inputs, [Y], max_queue=queue, max_batch=8)
    found = fitted(model, pool, 16)
    assert (found.info.batching.max_queue, found.info.batching.max_batch) == (cut, 8)
    assert (found.call, model.info.batching.max_queue) == (model.call, queue)
    assert (f"cut from {queue} to {cut} rows" in caplog.text) == (cut < queue)


def test_no_batch_is_larger_than_the_largest_worker_and_slots_are_for_all_that_can_wait_or_run() -> None:
    spec = DeviceSpec((WorkerSpec(2), WorkerSpec(4)), push_depth=2)
    model, spare, slots = MemoryLimits().fit(make_model(max_batch=8, max_queue=10), spec, 3)
    assert (model.info.batching.max_batch, spare, slots) == (4, 12, 2 * 10 + 4 * 2 * 2 + 12)


def test_a_stage_over_the_budget_is_logged_with_how_many_would_fit(caplog: pytest.LogCaptureFixture) -> None:
    profiles = [Profile((8_000_000,)), Profile((31_200_000, 40_000_000))]
    with caplog.at_level(logging.INFO):
        note_if_over_budget("encoder", profiles, 32_000_000, cell=False)
        note_if_over_budget("encoder", [Profile()], 1, cell=False)
        assert caplog.messages == []
        note_if_over_budget("encoder", [Profile((20_000_000,))], 10_000_000, cell=True)
        note_if_over_budget("encoder", profiles, 10_000_000, cell=False)
    page = " ".join((Path(__file__).parents[2] / "docs" / "classes.md").read_text(encoding="utf-8").split())
    cell, stage = caplog.messages
    assert "stages would" not in cell
    assert stage.replace("stage 1", "stage 0") in page


@pytest.mark.parametrize(("container", "warned"), [(None, False), (8192, False), (600, True)])
def test_memory_that_a_container_may_not_have_is_logged_with_the_settings(
    container: int | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    models = [cast(Any, SimpleNamespace(pool=SimpleNamespace(nbytes=512 * MIB), activations=None))] * 6
    MemoryLimits(bodies=512 * MIB, container=container and container * MIB).warn_if_exceeded(models)
    parts = "6 models may take 3072 MiB (--pool-mib", "512 MiB (--max-inflight-mib)", "the container's 600 MiB"
    assert all(part in caplog.text for part in parts) == warned
