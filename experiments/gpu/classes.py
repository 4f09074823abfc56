"""ResNet-50, one row at a time, 100 a second, beside BERT-large in batches of 32, through the engine (REEF).

`alone`: no bulk. `one queue`: one worker, and nothing says that the bulk can wait. `streams`: two workers, no classes.
`priorities`: a worker with a stream of high priority is kept for real time, and the bulk is not held back. `reef`: it
is, and the batch of the bulk can stop after each of its stages.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from torch import nn

from app.contract import Klass, Model
from app.engine.engine import Engine
from app.engine.served_model import ServedModel
from app.scheduler.types import ClassSpec
from experiments.gpu.blocks import Block, Data
from experiments.gpu.engines import Setup, built, engine_of, model_of, ready, started, tensor
from experiments.gpu.loads import Closed, Rate, Rows, closed_loop, ids, open_loop
from experiments.gpu.networks import LARGE, TINY, TOKENS, bert, cut, resnet50
from loadtest.generator.run import in_loop

STAGES = (8, 4, 1)
RATE = 100.0
_IN_FLIGHT = 3  # calls of the bulk: one runs, two wait
_BUDGET_NS = 1_000_000
_WITHOUT_LIMITS = ClassSpec(budget_ns=1 << 60, slowdown=1e9)


def measure(block: Block) -> None:
    rows = 2 if block.quick else 32
    side = 32 if block.quick else 224
    urgent = built(block, lambda: nn.Sequential(*resnet50(quick=block.quick)))
    parts = built(block, lambda: bert(TINY if block.quick else LARGE))
    plan = _Plan(block, rows, side, urgent, parts)
    block.keep(rows=rows, rate=RATE, budget_ms=_BUDGET_NS / 1e6, ways={}, bulk_alone_rows_s={}, stage_ms={})
    with block.noting("reef"):
        in_loop(plan.reef())
    others = {
        "priorities": Setup((rows, rows), _WITHOUT_LIMITS, keeps_one=True),
        "one queue": Setup((rows,), baseline="streams"),
        "streams": Setup((rows, rows), baseline="streams"),
    }
    for name, setup in others.items():
        if block.fits(name, 9):
            with block.noting(name):
                in_loop(plan.other(name, setup))


class _Plan:
    def __init__(self, block: Block, rows: int, side: int, urgent: nn.Module, parts: list[nn.Module]) -> None:
        self._block, self._rows, self._urgent, self._parts = block, rows, urgent, parts
        self._side = side
        random = np.random.default_rng(0)
        self._images: list[Rows] = [
            ((random.integers(0, 255, (1, 3, side, side), dtype=np.uint8),), {}) for _ in range(8)
        ]
        self._texts = ids(8, TOKENS, rows)
        self._seconds = block.seconds(2.5)

    def _resnet(self) -> Model:
        inputs = [tensor("image", "UINT8", 3, self._side, self._side)]
        return model_of(
            self._urgent, inputs, [tensor("y", "FP32", 1000)], name="resnet50", policy="no_wait", max_batch=1,
            max_queue=256,
        )  # fmt: skip

    def _bulk(self, stages: int) -> Model:
        width = (TINY if self._block.quick else LARGE).width
        pieces = cut(self._parts, stages)
        return model_of(
            pieces if stages > 1 else pieces[0], [tensor("ids", "INT32", TOKENS, minimum=0, maximum=30_521)],
            [tensor("y", "FP32", width)], name=f"bulk{stages}", policy="no_wait", max_batch=self._rows,
        )  # fmt: skip

    async def reef(self) -> None:
        """Alone, then beside the bulk in each number of stages, all on one engine."""
        block, found = self._block, self._block.found
        spec = ClassSpec(budget_ns=_BUDGET_NS)
        async with engine_of(block, Setup((self._rows, self._rows), spec, keeps_one=True)) as engine:
            urgent = await started(engine, self._resnet())
            await ready(engine, urgent, 1.0)
            found["ways"]["alone"] = await self._asked(urgent)
            block.keep()
            for stages in STAGES:
                name = f"reef, {stages} stage{'s' * (stages > 1)}"
                if block.fits(name, 10):
                    bulk = await self._started(engine, stages)
                    times = [one.batch_ns[-1] / 1e6 for one in bulk.profiled.profile.stages]
                    found["stage_ms"][stages] = round(max(times or [bulk.profiled.profile.batch_ns[-1] / 1e6]), 4)
                    alone = await closed_loop(bulk, self._texts, _IN_FLIGHT, self._seconds / 2, Klass.BEST_EFFORT)
                    found["bulk_alone_rows_s"][stages] = alone["rows_s"]
                    found["ways"][name] = await self._beside(urgent, bulk, Klass.BEST_EFFORT)
                    block.keep()
            found["ways"]["alone again"] = await self._asked(urgent)
            block.keep()

    async def other(self, name: str, setup: Setup) -> None:
        """Beside the whole bulk on an engine of this kind."""
        async with engine_of(self._block, setup) as engine:
            urgent = await started(engine, self._resnet())
            bulk = await self._started(engine, 1)
            klass = None if name in ("one queue", "streams") else Klass.BEST_EFFORT
            self._block.found["ways"][name] = await self._beside(urgent, bulk, klass)
        self._block.keep()

    async def _started(self, engine: Engine, stages: int) -> ServedModel:
        begun = time.monotonic()
        bulk = await started(engine, self._bulk(stages))
        await ready(engine, bulk, 1.0)
        self._block.found.setdefault("load_s", {})[bulk.info.name] = round(time.monotonic() - begun, 1)
        return bulk

    async def _asked(self, urgent: ServedModel) -> Data:
        return await open_loop(urgent, self._images, Rate(RATE), self._seconds)

    async def _beside(self, urgent: ServedModel, bulk: ServedModel, klass: Klass | None) -> Data:
        async with Closed(bulk, self._texts, _IN_FLIGHT, klass) as load:
            await asyncio.sleep(self._seconds / 5)
            load.begin()
            found = await self._asked(urgent)
            rate = load.rows_s()
        return {
            **found,
            "bulk_rows_s": rate,
            **({"bulk_faults": load.found["faults"]} if "faults" in load.found else {}),
        }
