"""Invariant: rows of different lengths are answered as if each had run alone, and a model knows what is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.contract import DATATYPES, UNBOUNDED, Array, TensorSpec
from app.engine.cpu.executor import CpuExecutor
from app.engine.pool import Pool
from app.errors import ConfigError

from ..rig import make_model, tensor


def make(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], call, slots: int = 8) -> CpuExecutor:
    model = make_model(call, inputs, outputs)
    return CpuExecutor(model, Pool(model.info.client_inputs, slots))


def put(executor: CpuExecutor, slot: int, *values: Array, **lengths: int) -> None:
    for index, value in enumerate(values):
        executor.pool.write([slot], index, value[None], lengths)
    executor.pool.set_lengths([slot], lengths)


def test_a_model_that_writes_into_what_is_made():
    def masked(ids, mask, n):
        return ids * mask.logical_not_().logical_not_() + n.add_(1)[:, None]

    ids, mask = tensor("ids", "INT64", ("t", 4)), tensor("mask", "BOOL", ("t", 4), mask_of="ids")
    executor = make([ids, mask, tensor("n", "INT64", lengths_of="t")], [tensor("y", "INT64", ("t", 4))], masked)
    put(executor, 0, np.array([5, 6]), t=2)
    put(executor, 1, np.array([7]), t=1)
    for _ in range(2):
        assert executor.trial([0, 1], 2).outputs[0].tolist() == [[8, 9], [9, 2]]


# inputs without bound


def test_rows_without_bound_take_no_memory_before_they_come_and_none_after():
    executor = make([tensor("x", "FP32", ("n", UNBOUNDED), 2)], [tensor("y", "FP32", ("n", UNBOUNDED), 2)], lambda x: x)
    pool = executor.pool
    assert (pool.slabs, pool.objects) == ([None], [[None] * 8])
    slots = pool.take(2)
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    pool.write(slots, 0, memoryview(values.tobytes()), {"n": 3})
    pool.set_lengths(slots, {"n": 3})
    assert np.array_equal(executor.run(slots, 2).outputs[0], values)
    assert np.shares_memory(pool.objects[0][0], pool.objects[0][1].base)  # one call, one array
    pool.give_back(slots)
    assert pool.objects == [[None] * 8]


def test_rows_without_bound_are_cast():
    executor = make([tensor("x", "FP16", ("n", UNBOUNDED))], [tensor("y", "FP16", ("n", UNBOUNDED))], lambda x: x)
    put(executor, 0, np.array([1, 2]), n=2)
    assert executor.run([0], 1).outputs[0].dtype == np.float16


@given(
    datatype=st.sampled_from(list(DATATYPES)),
    lengths=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=5),
    bounds=st.tuples(st.sampled_from([5, UNBOUNDED]), st.sampled_from([4, UNBOUNDED])),
    shuffled=st.randoms(use_true_random=False),
    extra=st.integers(0, 2),
)
def test_every_row_is_answered_as_if_it_were_alone(datatype, lengths, bounds, shuffled, extra):
    """Bounded inputs, unbounded ones and both; one shared axis and one of the second input's own; a made mask."""
    a = tensor("a", "INT32", ("n", bounds[0]), pad_value=1)
    b = tensor("b", datatype, ("n", bounds[0]), 2, ("m", bounds[1]), pad_value=0)
    inputs = [a, tensor("mask", "INT64", ("n", bounds[0]), mask_of="a"), b, tensor("k", "INT64", lengths_of="m")]
    outputs = [tensor("total", "INT64"), tensor("same", datatype, ("n", bounds[0]), 2, ("m", bounds[1]))]

    def call(a, mask, b, k):
        return (a * mask).sum(1) * 10 + k, b

    executor = make(inputs, outputs, call)
    rng = np.random.default_rng(shuffled.randrange(1 << 30))
    rows = {}
    slots = shuffled.sample(range(8), len(lengths))
    for slot, (n, m) in zip(slots, lengths, strict=True):
        drawn = rng.integers(0, 2, (n, 2, m)).astype(b.dtype)
        rows[slot] = rng.integers(0, 2, (n,)), drawn.astype(bytes).astype(object) if datatype == "BYTES" else drawn
        put(executor, slot, *rows[slot], n=n, m=m)
    totals, same = executor.run(slots, len(slots) + extra).outputs
    for position, (slot, (n, m)) in enumerate(zip(slots, lengths, strict=True)):
        first, second = rows[slot]
        assert totals[position] == first.sum() * 10 + m
        assert np.array_equal(same[position, :n, :, :m], second)
        alone = executor.run([slot], 1).outputs
        assert (alone[0][0], alone[1].shape) == (totals[position], (1, n, 2, m))
        assert np.array_equal(alone[1][0], second)


# outputs


@pytest.mark.parametrize("change", [lambda x: x[:, :-1], lambda x: torch.cat([x, x], dim=1)], ids=["shorter", "longer"])
def test_an_output_as_long_as_its_inputs_or_none(change):
    executor = make([tensor("x", "FP32", ("n", 8))], [tensor("y", "FP32", ("n", 8))], change)
    put(executor, 0, np.ones(3), n=3)
    with pytest.raises(
        ConfigError, match=r"output 'y': expected the length 3 that the inputs have along axis 'n', got"
    ):
        executor.run([0], 1)
