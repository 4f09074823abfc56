"""What is set up before a model serves: its queues fit into memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from fakes import virtual
from hypothesis import given
from hypothesis import strategies as st

from app.contract import Model
from app.engine.memory import Memory
from app.errors import ConfigError
from app.scheduler.types import DeviceSpec, WorkerSpec

from .rig import X, Y, make_model, serving, tensor

# A model's queues, one for each class, fit into memory; none is cut below a batch: then the model is refused.


MIB = 1 << 20
IMAGE = tensor("image", "FP32", 256, 256)  # 256 KiB a row
LARGE = tensor("image", "FP32", 1024, 1024)
TEXT = tensor("t", "BYTES", 1000)
UNBOUND = tensor("x", "FP32", ("n", 0))
LONG = tensor("x", "FP32", ("n", 1000))
#: The server makes it: it needs no slots.
MASK = tensor("mask", "FP32", ("n", 1000), mask_of="x")


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
def test_queues_are_cut_to_the_memory_of_slots(inputs: Any, pool: int, queue: int, cut: int, caplog) -> None:
    model = make_model(None, inputs, [Y], max_queue=queue, max_batch=8)
    found = Memory(pool=pool).reserve(model, DeviceSpec((WorkerSpec(8),), push_depth=2), 0).model
    assert (found.info.batching.max_queue, found.info.batching.max_batch) == (cut, 8)
    assert (found.call, model.info.batching.max_queue) == (model.call, queue)
    assert (f"cut from {queue} to {cut} rows" in caplog.text) == (cut < queue)


def test_no_batch_is_larger_than_the_largest_worker_and_slots_are_for_all_that_can_wait_or_run() -> None:
    spec = DeviceSpec((WorkerSpec(2), WorkerSpec(4)), push_depth=2)
    found = Memory().reserve(make_model(max_batch=8, max_queue=10), spec, 3)
    assert (found.model.info.batching.max_batch, found.spare, found.slots) == (4, 12, 2 * 10 + 4 * 2 * 2 + 12)


# in a container

ONE = DeviceSpec((WorkerSpec(1 << 16),))


def heavy(name: str = "m", mib: int = 4, weights_mib: int = 0, max_batch: int = 4) -> Model:
    """A row takes so many MiB."""

    def first(image: torch.Tensor) -> torch.Tensor:
        return image[:, 0, :2]

    call = torch.nn.Linear(weights_mib << 18, 1, bias=False) if weights_mib else first
    image = tensor("image", "FP32", mib, 1 << 18)
    return make_model(call, [image], [Y], name=name, max_queue=64, max_batch=max_batch)


def queue_of(memory: Memory, model: Model) -> int:
    return memory.reserve(model, ONE, 1).model.info.batching.max_queue


def test_queues_are_cut_before_a_model_is_refused() -> None:
    memory = Memory(bodies=512 * MIB, container=2200 * MIB, resident=200 * MIB, models=4)
    assert memory.bodies == 500 * MIB
    # An even part is 250 MiB: 62 rows, of which 8 run or are measured with.
    assert [queue_of(memory, heavy(f"m{number}")) for number in range(4)] == [27] * 4
    with pytest.raises(ConfigError) as refused:
        memory.reserve(heavy("more", max_batch=8), ONE, 1)
    assert (
        "slots for a queue of 8 rows and batches of 8 take 128 MiB, and 8 MiB are left: of the container's "
        "2200 MiB the process takes 200 MiB, weights 0 MiB, bodies 500 MiB, other models 992 MiB"
    ) in str(refused.value)


@pytest.mark.parametrize(("on_gpu", "queue"), [(False, 26), (True, 56)])
def test_weights_leave_less_for_slots_but_on_a_gpu(on_gpu: bool, queue: int) -> None:
    memory = Memory(container=160 * MIB, on_gpu=on_gpu)
    model = heavy(mib=1, weights_mib=80)
    assert queue_of(memory, model) == queue


@pytest.mark.filterwarnings("ignore:Sparse ")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_weight_counts_with_the_values_that_it_has(layout: torch.layout) -> None:
    """As the adjacency of a graph, which would not fit if it were dense."""
    graph = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (1 << 20, 1 << 20))
    model = heavy(mib=1, weights_mib=1)
    assert isinstance(model.call, torch.nn.Module)
    model.call.register_buffer("graph", graph if layout is torch.sparse_coo else graph.to_sparse_csr())
    assert Memory(container=160 * MIB).reserve(model, ONE, 1).weight_bytes == MIB + 20


def test_a_version_that_is_loaded_again_replaces_itself() -> None:
    memory = Memory(container=200 * MIB)
    first, second = memory.reserve(heavy(), ONE, 1), memory.reserve(heavy(), ONE, 1)
    assert first.slots == second.slots
    with pytest.raises(ConfigError):
        memory.reserve(heavy("other"), ONE, 1)
    for model in (first.model, second.model):
        memory.release(model)
    assert memory.reserve(heavy("other"), ONE, 1).slots == first.slots


@given(
    st.integers(0, 4000), st.integers(0, 600), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 16)), max_size=8)
)
def test_what_is_reserved_fits(limit: int, resident: int, models: list[tuple[int, int]]) -> None:
    memory = Memory(bodies=512 * MIB, container=limit * MIB, resident=resident * MIB, models=len(models))
    reserved = memory.bodies
    for number, (mib, batch) in enumerate(models):
        with suppress(ConfigError):
            reserved += memory.reserve(heavy(f"m{number}", mib, max_batch=batch), ONE, 0).nbytes
    assert reserved <= max(0, limit - resident) * MIB * 3 // 4


@virtual
async def test_the_engine_refuses_a_model_that_does_not_fit_and_reuses_what_is_freed() -> None:
    memory = Memory(bodies=50 * MIB, container=200 * MIB)
    async with serving(heavy("first"), memory=memory) as rig:
        with pytest.raises(ConfigError, match="slots for a queue of 4 rows"):
            await rig.engine.start(heavy("second"))
        await rig.engine.stop(rig.served)
        assert (await rig.engine.start(heavy("second"))).info.batching.max_queue == 10
