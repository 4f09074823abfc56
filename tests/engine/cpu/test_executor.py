"""Invariant: a row's outputs depend on its own slot alone, and belong to nobody else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.contract import DATATYPES, Model
from app.engine.cpu.executor import CpuExecutor
from app.engine.pool import Pool
from app.errors import ConfigError

from ..rig import make_model, rows_of, tensor

FIXED = [name for name in DATATYPES if name not in ("BYTES", "BF16")]
NUMERIC = [*FIXED, "BF16"]


def make(model: Model, slots: int = 8) -> CpuExecutor:
    return CpuExecutor(model, Pool(model.info.client_inputs, slots))


def filled(model: Model, slots: int = 8) -> CpuExecutor:
    """An executor over inputs of X's kind, whose slot i holds the row of 10 + i."""
    executor = make(model, slots)
    executor.pool.write(range(slots), 0, rows_of(*[10.0 + i for i in range(slots)]))
    return executor


class Keeper:
    """Keeps the inputs of each call; gives the first back as the output."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def __call__(self, *inputs, **keywords):
        self.seen.append((*[value.clone() if isinstance(value, torch.Tensor) else value for value in inputs], keywords))
        return inputs[0]


# gathering


def test_neighbours_are_a_view_and_others_are_not():
    where: list[int] = []
    executor = filled(make_model(lambda x: where.append(x.data_ptr()) or x))
    slab = executor.pool.slabs[0]
    executor.run([2, 3], 2)
    executor.run([3, 2], 2)
    assert where[0] == slab[2].data_ptr()
    assert not slab.data_ptr() <= where[1] < slab.data_ptr() + slab.nbytes


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
    (first,) = executor.run(range(2), 2).outputs
    executor.run(range(4, 6), 2)
    executor.pool.write(range(8), 0, np.zeros((8, 2), np.float32))
    assert first.tobytes() == (rows_of(10.0, 11.0) * by).tobytes()
    first[:] = 7
    assert not executor.pool.slabs[0].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.double(), r"output 'y': expected FP32, got .*float64"),
        (lambda x: x[:, :1], "output 'y'"),
        (lambda x: x[:-1], r"output 'y': expected shape \[2, 2\], got \[1, 2\]"),
        (lambda x: x[:, None], r"output 'y': expected shape \[2, 2\], got \[2, 1, 2\]"),
        (lambda x: x.sum(), r"output 'y': expected shape \[2, 2\], got \[\]"),
        (lambda x: (x, x), r"expected 1 outputs \['y'\], got 2"),
        (lambda x: {"z": x}, r"output 'y': not returned"),
        (lambda x: None, "got NoneType"),
        (lambda x: [x.tolist()], "expected a tensor or a numpy array, got list"),
    ],
    ids=["dtype", "width", "rows", "dimensions", "scalar", "number", "names", "nothing", "list"],
)
def test_what_a_model_may_not_return(call, message: str):
    with pytest.raises(ConfigError, match=message):
        filled(make_model(call)).run(range(2), 2)


# variable lengths


def sequence(datatype: str = "FP32", pad_value: float = 0) -> Model:
    spec = tensor("ids", datatype, ("tokens", 6), pad_value=pad_value)
    return make_model(lambda x: x, [spec], [tensor("y", datatype, ("tokens", 6))])


def poison(executor: CpuExecutor) -> None:
    """Fill every slot as an earlier caller's full rows would have."""
    for index, spec in enumerate(executor.pool.specs):
        executor.pool.write(range(8), index, np.full((8, *spec.bounds), 99).astype(spec.dtype))
        executor.pool.set_lengths(range(8), {axis: n for axis, n in zip(spec.axes, spec.bounds, strict=True) if axis})


def put(executor: CpuExecutor, slot: int, values: np.ndarray, **lengths: int) -> None:
    executor.pool.write([slot], 0, values[None])
    executor.pool.set_lengths([slot], lengths)


PAD_VALUES = {"FP32": -1.5, "BOOL": True, "BF16": 0.5, "UINT8": 255, "INT64": 2**53 + 1, "UINT64": 2**63 + 1}


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("datatype", NUMERIC)
def test_no_column_of_an_earlier_caller_survives(datatype: str, slots: list[int]):
    pad = PAD_VALUES.get(datatype, 7)
    executor = make(sequence(datatype, pad))
    poison(executor)
    dtype = DATATYPES[datatype]
    expected = np.full((3, 4), 0x3F00 if datatype == "BF16" else pad).astype(dtype)
    for slot, length in enumerate((2, 4, 1)):
        put(executor, slot, np.full(length, slot).astype(dtype), tokens=length)
        expected[slot, :length] = slot
    (got,) = executor.run(slots, 3).outputs
    assert np.array_equal(got, expected[slots])


# models that write into their input


@pytest.mark.parametrize(
    "call",
    [lambda x: x.add_(1), lambda x: torch.relu_(x).mul_(2), lambda x: x.__setitem__((slice(None), 0), 0.0) or x],
    ids=["whole", "twice", "part"],
)
def test_a_model_that_writes_into_its_input_gets_copies(call):
    executor = make(make_model(call))
    assert not executor.copies
    with torch.inference_mode():
        executor.pool.write(range(2), 0, rows_of(1, 2))
        executor.trial(range(2), 2)
        assert executor.copies
        executor.pool.write(range(8), 0, rows_of(*range(10, 18)))
        first = executor.run(range(2, 4), 2).outputs[0]
        assert np.array_equal(executor.pool.views[0], rows_of(*range(10, 18)))
        assert np.array_equal(executor.run(range(2, 4), 2).outputs[0], first)  # a retry sees the same input


def test_a_model_that_leaves_its_input_alone_gets_views():
    executor = make(make_model(lambda x: (x + 1).mul_(2)))
    with torch.inference_mode():
        executor.pool.write(range(3), 0, rows_of(1, 2, 3))
        executor.trial(range(3), 3)
    assert not executor.copies
