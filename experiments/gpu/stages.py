"""BERT-base with a mask on rows of mixed lengths, whole and in four stages, by policy (DVABatch).

Each is asked for as much as it takes, then by Poisson arrivals at 0.6 of what the whole took. Lengths are log-normal
about 45 tokens; with length buckets rows are padded to the end of their bucket at most.
"""

from __future__ import annotations

import time
from dataclasses import replace

from torch import nn

from app.contract import Checks, Model
from app.errors import ConfigError
from experiments.gpu.blocks import Block, Data
from experiments.gpu.engines import Setup, built, engine_of, model_of, ready, started, tensor
from experiments.gpu.loads import Rate, Rows, closed_loop, ids_of, open_loop
from experiments.gpu.networks import BASE, TINY, TOKENS, bert, cut
from loadtest.generator.run import in_loop
from planner.drawn_lengths import Lengths

LENGTHS = f"lognormal:45:0.6:8:{TOKENS}"
STAGES = 4
BUCKETS = (32, 64, 96)
#: By name: stages, policy, workers. `dva_input` runs its clusters at once.
WAYS = {
    "whole, adaptive": (1, "adaptive", 1),
    "stages, adaptive": (STAGES, "adaptive", 1),
    "stages, dva_load": (STAGES, "dva_load", 1),
    "stages, dva_input": (STAGES, "dva_input", 2),
    "stages, dva_operator": (STAGES, "dva_operator", 1),
    "whole, no_wait": (1, "no_wait", 1),
}
_SHARE = 0.6


def measure(block: Block) -> None:
    largest = 4 if block.quick else 32
    parts = built(block, lambda: bert(TINY if block.quick else BASE))
    calls = ids_of(Lengths(LENGTHS, [0]).draw(1000).tolist(), "tokens")
    block.keep(lengths=LENGTHS, largest=largest, stages=STAGES, share=_SHARE, ways={})
    for name, (stages, policy, workers) in WAYS.items():
        if block.fits(name, 9):
            model = _model(block, parts, stages, policy, largest)
            with block.noting(name):
                block.found["ways"][name] = in_loop(_of_way(block, model, (largest,) * workers, calls))


async def _of_way(block: Block, model: Model, workers: tuple[int, ...], calls: list[Rows]) -> Data:
    found: Data = {}
    begun, seconds, largest = time.monotonic(), block.seconds(2.0), workers[0]
    async with engine_of(block, Setup(workers, measures_s=1.0)) as engine:
        try:
            served = await started(engine, model)
        except ConfigError as exc:  # its answers differ with padding by more than the check allows
            found["no_graphs"] = str(exc)[:300]
            served = await started(engine, replace(model, checks=Checks(row_check="off")))
        found["times_from"] = await ready(engine, served, 0.3 if block.quick else 5.0)
        found["load_s"] = round(time.monotonic() - begun, 1)
        found["closed"] = await closed_loop(served, calls, 4 * largest, seconds / 2)
        peak = block.found.setdefault("peak_rows_s", found["closed"]["rows_s"])
        found["open"] = await open_loop(served, calls, Rate(_SHARE * peak), seconds)
    return found


def _model(block: Block, parts: list[nn.Module], stages: int, policy: str, largest: int) -> Model:
    width = (TINY if block.quick else BASE).width
    inputs = [
        tensor("ids", "INT32", ("tokens", TOKENS), minimum=0, maximum=30_521),
        tensor("mask", "INT32", ("tokens", TOKENS), mask_of="ids"),
    ]
    pieces = cut(parts, stages)
    return model_of(
        pieces if stages > 1 else pieces[0], inputs, [tensor("y", "FP32", width)], name=f"{policy}-{stages}",
        row_check="refuse",  # without it rows are not padded to the lengths of graphs
        again=((), *((1,) for _ in pieces[1:])), policy=policy, max_batch=largest,
        length_buckets=BUCKETS,
    )  # fmt: skip
