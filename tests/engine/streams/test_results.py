"""Invariant: what an answer holds is never written again, and it keeps no pinned memory."""

from __future__ import annotations

import numpy as np
import torch
from runtimes import FakeRuntime

from app.engine.streams.results import HostBlock, HostBlocks, result_bytes

from ..rig import Y, tensor


def test_outputs_of_every_kind_lie_side_by_side():
    runtime = FakeRuntime()
    block = HostBlock(runtime, (1, 4), 0)
    specs = [tensor(name, name, 3) for name in ("BOOL", "UINT8", "FP64", "BF16", "INT64", "UINT32")]
    dtypes = [torch.bool, torch.uint8, torch.float64, torch.bfloat16, torch.int64, torch.uint32]
    values = [torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]]).to(dtype) for dtype in dtypes]
    where = HostBlocks(lambda: block, 1)
    where.take().copy_out(values, 2)
    got = where.collect(block, specs)
    for spec, value, array in zip(specs, values, got, strict=True):
        bits = value.view(torch.uint16) if spec.datatype == "BF16" else value
        assert array.dtype == spec.dtype
        assert np.array_equal(array, bits[:2].numpy())


def test_memory_for_results():
    assert result_bytes([Y, tensor("b", "BOOL", 65)], 3) == 64 + 256
    assert result_bytes([tensor("u", "FP32", ("n", -1))], 3) == 0
