"""BERT-base with a mask on rows of mixed lengths, whole and in four stages, by policy (DVABatch).

Each is asked for as much as it takes, then by Poisson arrivals at 0.6 of what the whole took. Lengths are log-normal
about 45 tokens; with length buckets rows are padded to the end of their bucket at most.
"""

from __future__ import annotations

import asyncio
import time

import torch
from torch import nn

from app.contract import Model
from app.engine.engine import Engine
from app.errors import ConfigError
from app.sim.lengths import Lengths
from experiments.gpu.blocks import Block, Data
from experiments.gpu.engines import Setup, engine_of, model_of, ready, started, stopped, tensor
from experiments.gpu.loads import Rate, Rows, closed_loop, ids_of, open_loop
from experiments.gpu.networks import BASE, TINY, TOKENS, bert, cut

LENGTHS = f"lognormal:45:0.6:8:{TOKENS}"
STAGES = 4
BUCKETS = (32, 64, 96)
WAYS = {
    "whole, adaptive": (1, "adaptive"),
    "stages, adaptive": (STAGES, "adaptive"),
    "stages, dva_load": (STAGES, "dva_load"),
    "stages, dva_input": (STAGES, "dva_input"),
    "stages, dva_operator": (STAGES, "dva_operator"),
    "whole, no_wait": (1, "no_wait"),
}
_SHARE = 0.6


def measure(block: Block) -> None:
    largest = 4 if block.quick else 32
    with torch.device(block.device):
        parts = bert(TINY if block.quick else BASE)
    lengths = Lengths(LENGTHS, [0]).draw(1000).tolist()
    block.keep(lengths=LENGTHS, largest=largest, stages=STAGES, share=_SHARE, ways={})
    asyncio.run(_all(block, parts, largest, ids_of(lengths, "tokens")))


async def _all(block: Block, parts: list[nn.Module], largest: int, calls: list[Rows]) -> None:
    ways = block.found["ways"]
    async with engine_of(block, Setup((largest, largest), measures_s=1.0)) as engine:
        for name, (stages, policy) in WAYS.items():
            if block.fits(name, 8):
                ways[name] = await _of_way(block, engine, parts, stages, policy, largest, calls)
                block.keep()


async def _of_way(
    block: Block, engine: Engine, parts: list[nn.Module], stages: int, policy: str, largest: int, calls: list[Rows]
) -> Data:
    found: Data = {}
    begun, seconds = time.monotonic(), block.seconds(2.0)
    try:
        served = await started(engine, _model(block, parts, stages, policy, largest, "refuse"))
    except ConfigError as exc:  # padding changes the last digits by more than the check allows: then without graphs
        found["no_graphs"] = str(exc)[:300]
        served = await started(engine, _model(block, parts, stages, policy, largest, "off"))
    try:
        found["times_from"] = await ready(engine, served, 0.3 if block.quick else 2.5)
        found["load_s"] = round(time.monotonic() - begun, 1)
        found["closed"] = await closed_loop(served, calls, 4 * largest, seconds / 2)
        peak = block.found.setdefault("peak_rows_s", found["closed"]["rows_s"])
        found["open"] = await open_loop(served, calls, Rate(_SHARE * peak), seconds)
    finally:
        await stopped(engine, served)
    return found


def _model(block: Block, parts: list[nn.Module], stages: int, policy: str, largest: int, row_check: str) -> Model:
    width = (TINY if block.quick else BASE).width
    inputs = [
        tensor("ids", "INT32", ("tokens", TOKENS), minimum=0, maximum=30_521),
        tensor("mask", "INT32", ("tokens", TOKENS), mask_of="ids"),
    ]
    pieces = cut(parts, stages)
    return model_of(
        pieces if stages > 1 else pieces[0], inputs, [tensor("y", "FP32", width)], name=f"{policy}-{stages}",
        row_check=row_check, again=((), *((1,) for _ in pieces[1:])), policy=policy, max_batch=largest,
        length_buckets=BUCKETS,
    )  # fmt: skip
