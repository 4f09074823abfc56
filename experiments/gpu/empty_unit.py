"""One row at a time through the engine, of a model that computes almost nothing: what the engine itself costs."""

from __future__ import annotations

import time

import numpy as np
from torch import nn

from app.contract import ModelCall, awaited
from experiments.gpu.blocks import Block, Data
from experiments.gpu.engines import Setup, engine_of, model_of, started, tensor
from loadtest.generator.run import in_loop


def measure(block: Block) -> None:
    for name, graphs in (("graphs", True), ("eager", False)):
        if block.fits(name, 4):
            with block.noting(name):
                block.found[name] = in_loop(_of(block, graphs))


async def _of(block: Block, graphs: bool) -> Data:
    """Microseconds of a call alone by the wall, and of CPU time of all threads together."""
    model = model_of(
        nn.Linear(2, 2), [tensor("x", "FP32", 2)], [tensor("y", "FP32", 2)], name="empty", policy="no_wait", max_batch=4
    )
    row = np.ones((1, 2), np.float32)
    took: list[float] = []
    async with engine_of(block, Setup((4,), graphs=graphs, precision="fp32")) as engine:
        served = await started(engine, model)
        times = 50 if block.quick else 3000
        for turn in range(times + times // 5):
            if turn == times // 5:  # the first ones warm up
                took.clear()
                cpu = time.process_time()
            begun = time.perf_counter()
            with served.lease(ModelCall(1, [row])) as lease:
                await awaited(lease)
            took.append(time.perf_counter() - begun)
        spent = (time.process_time() - cpu) / times
    p50, p99 = np.percentile(took, (50, 99)) * 1e6
    return {"p50": round(p50, 1), "p99": round(p99, 1), "cpu_us": round(spent * 1e6, 1)}
