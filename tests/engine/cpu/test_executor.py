"""A row's outputs depend on its own slot alone, belong to nobody else, and know no padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.contract import DATATYPES, UNBOUNDED, Array, Model
from app.engine.cpu.executor import CpuExecutor
from app.engine.executor import Job, Stop
from app.engine.pool import Pool
from app.errors import ConfigError

from ..rig import make_model, rows_of, tensor

# Invariant: a row's outputs depend on its own slot alone, and belong to nobody else.


NUMERIC = [name for name in DATATYPES if name != "BYTES"]


def make(model: Model) -> CpuExecutor:
    return CpuExecutor(model, Pool(model.info.client_inputs, 8))


def filled(model: Model) -> CpuExecutor:
    """An executor over inputs of X's kind, whose slot i holds the row of 10 + i."""
    executor = make(model)
    executor.pool.write(range(8), 0, rows_of(*[10.0 + i for i in range(8)]))
    return executor


# outputs


BUFFER, WEIGHT, KEPT = torch.zeros(2, 2), torch.nn.Parameter(torch.full((2,), 2.0)), np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "by"),
    [
        pytest.param(lambda x: x, 1, id="the slots"),
        pytest.param(lambda x: torch.mul(x, 2, out=BUFFER), 2, id="a buffer that the model keeps"),
        pytest.param(lambda x: np.multiply(x.numpy(), 2, out=KEPT), 2, id="an array that the model keeps"),
        pytest.param(lambda x: x * WEIGHT, 2, id="what needs gradients"),
        pytest.param(lambda x: x.T.contiguous().T, 1, id="what is not contiguous"),
    ],
)
def test_outputs_are_memory_of_their_own(call, by: int):
    executor = filled(make_model(call))
    (first,) = executor.whole(range(2), 2).outputs
    executor.whole(range(4, 6), 2)
    executor.pool.write(range(8), 0, np.zeros((8, 2), np.float32))
    assert first.tobytes() == (rows_of(10.0, 11.0) * by).tobytes()
    first[:] = 7
    assert not executor.pool.slabs[0].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.double(), r"output 'y': expected FP32 .*, got .*float64"),
        (lambda x: x[:, :1], "output 'y'"),
        (lambda x: x[:-1], r"output 'y': expected shape \[2, 2\], got \[1, 2\]"),
        (lambda x: [x.tolist()], "expected a tensor or a numpy array, got list"),
        (lambda x: [x.sum().item()], "expected a tensor or a numpy array, got float; the first axis of each output is"),
    ],
    ids=["dtype", "width", "rows", "list", "number"],  # tests/models/test_specs.py has the others
)
def test_what_a_model_may_not_return(call, message: str):
    with pytest.raises(ConfigError, match=message):
        filled(make_model(call)).whole(range(2), 2)


# variable lengths


def put(executor: CpuExecutor, slot: int, *values: Array, **lengths: int) -> None:
    executor.pool.set_lengths([slot], lengths)
    for index, value in enumerate(values):
        executor.pool.write([slot], index, value[None], lengths)


PAD_VALUES = {"FP32": -1.5, "BOOL": True, "BF16": 0.5, "UINT8": 255, "INT64": 2**53 + 1, "UINT64": 2**63 + 1}


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("datatype", NUMERIC)
def test_no_column_of_an_earlier_caller_survives(datatype: str, slots: list[int]):
    pad, dtype = PAD_VALUES.get(datatype, 7), DATATYPES[datatype]
    ids, y = tensor("ids", datatype, ("tokens", 6), pad_value=pad), tensor("y", datatype, ("tokens", 6))
    executor = make(make_model(lambda x: x, [ids], [y]))
    executor.pool.set_lengths(range(8), {"tokens": 6})
    executor.pool.write(range(8), 0, np.full((8, 6), 99).astype(dtype))
    expected = np.full((3, 4), 0x3F00 if datatype == "BF16" else pad).astype(dtype)
    for slot, length in enumerate((2, 4, 1)):
        put(executor, slot, np.full(length, slot).astype(dtype), tokens=length)
        expected[slot, :length] = slot
    (got,) = executor.whole(slots, 3).outputs
    assert np.array_equal(got, expected[slots])


# models that write into their input


@pytest.mark.parametrize("slots", [[2, 3], [5, 2], [7]], ids=["adjacent", "apart", "measured"])
@pytest.mark.parametrize("call", [lambda x: x.add_(1), lambda x: x.data.mul_(2), lambda x: x.numpy().fill(0) or x])
def test_rows_that_run_again_are_read_from_copies(call, slots: list[int]):
    executor = make(make_model(call))
    assert executor.pool.set_apart(1) == range(7, 8)
    executor.pool.write(range(8), 0, rows_of(*range(10, 18)))
    first = executor.whole(slots, len(slots)).outputs[0]
    assert np.array_equal(executor.pool.views[0], rows_of(*range(10, 18)))
    assert np.array_equal(executor.whole(slots, len(slots)).outputs[0], first)


# Invariant: rows of different lengths are answered as if each had run alone, and a model knows what is padding.


def test_rows_without_bound_take_no_memory_before_they_come_and_none_after():
    x, y = (tensor(name, "FP32", ("n", UNBOUNDED), 2) for name in "xy")
    executor = make(make_model(lambda x: x, [x], [y]))
    pool = executor.pool
    assert (pool.slabs, pool.views[0].tolist()) == ([None], [None] * 8)
    slots = pool.take(2)
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    pool.set_lengths(slots, {"n": 3})
    pool.write(slots, 0, memoryview(values.tobytes()), {"n": 3})
    assert np.array_equal(executor.whole(slots, 2).outputs[0], values)
    assert np.shares_memory(pool.views[0][0], pool.views[0][1].base)  # one call, one array
    pool.give_back(slots)
    assert pool.views[0].tolist() == [None] * 8


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

    executor = make(make_model(call, inputs, outputs))
    rng = np.random.default_rng(shuffled.randrange(1 << 30))
    rows = {}
    slots = shuffled.sample(range(8), len(lengths))
    for slot, (n, m) in zip(slots, lengths, strict=True):
        drawn = rng.integers(0, 2, (n, 2, m)).astype(b.dtype)
        rows[slot] = rng.integers(0, 2, (n,)), drawn.astype(bytes).astype(object) if datatype == "BYTES" else drawn
        put(executor, slot, *rows[slot], n=n, m=m)
    totals, same = executor.whole(slots, len(slots) + extra).outputs
    for position, (slot, (n, m)) in enumerate(zip(slots, lengths, strict=True)):
        first, second = rows[slot]
        assert totals[position] == first.sum() * 10 + m
        assert np.array_equal(same[position, :n, :, :m], second)
        alone = executor.whole([slot], 1).outputs
        assert (alone[0][0], alone[1].shape) == (totals[position], (1, n, 2, m))
        assert np.array_equal(alone[1][0], second)


# conformance/test_any_order.py has the answers of rows in stages and steps, whose models write into what they get.


def test_a_stage_may_return_the_same_memory_each_time():
    memory = torch.zeros(1, 2)
    executor = filled(make_model(stages=[lambda x: torch.mul(x, 2, out=memory), lambda x: x * 1]))
    ran = [[*executor.run(Job(0, executor, [slot], 1, stage), Stop())] for stage in (0, 1) for slot in (0, 1)]
    assert [one.outputs[0][0, 0] for (one,) in ran[2:]] == [20, 22]


def test_what_a_stage_must_not_pass_on_fails_its_unit():
    executor = filled(make_model(stages=[lambda x: x[:1], lambda x: x + 1]))
    with pytest.raises(ConfigError, match="stage 0: value 0: expected 2 rows first"):
        list(executor.run(Job(0, executor, [0, 1], 2, 0), Stop()))
    assert not executor.activations
