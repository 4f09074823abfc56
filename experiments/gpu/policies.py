"""BERT-base in half precision, rows of 128 int32 tokens, through the engine without HTTP: four policies.

First the bare network in a loop of graphs of 32 rows, and the most that `no_wait` serves: its peak. Then each policy at
shares of that peak, with Poisson arrivals.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from app.contract import Model
from experiments.gpu.blocks import Block, Data
from experiments.gpu.card import card_of
from experiments.gpu.engines import built, engine_of, model_of, own_setup, ready, started, tensor
from experiments.gpu.loads import Rate, closed_loop, ids, open_loop
from experiments.gpu.networks import BASE, TINY, TOKENS, WORDS, whole_bert
from loadtest.generator.run import in_loop

POLICIES = ("no_wait", "window", "adaptive", "ebird")
SHARES = (0.3, 0.6, 0.85)
_RUN_S = 2.0
_EACH_S = 14.0  # a policy: its load, its profile, four runs


def measure(block: Block) -> None:
    largest = 4 if block.quick else 32
    block.keep(largest=largest, tokens=TOKENS, shares=SHARES, policies={})
    with torch.inference_mode(), block.noting("bare"):
        block.found["bare_rows_s"] = bare_rows_s(block, largest)
    for policy in POLICIES:
        if block.fits(policy, _EACH_S):
            with block.noting(policy):
                block.found["policies"][policy] = in_loop(_of_policy(block, policy, largest))


def bare_rows_s(block: Block, rows: int) -> float:
    """The network alone: a graph of so many rows, one behind another."""
    card = card_of(block)
    stream = card.stream()
    module = built(block, lambda: whole_bert(block.quick)).eval().to(card.half)
    given = torch.randint(0, WORDS, (rows, TOKENS), dtype=torch.int32, device=card.device)
    replay = card.capture(partial(module, given), stream)
    end, ran, begun = time.monotonic() + block.seconds(1.0), 0, time.perf_counter()
    with card.on(stream):
        while time.monotonic() < end:
            for _ in range(10):
                replay()
            stream.synchronize()
            ran += 10
    return round(rows * ran / (time.perf_counter() - begun), 1)


def bert_model(module: nn.Module, quick: bool, largest: int, **batching: Any) -> Model:
    width = (TINY if quick else BASE).width
    inputs = [tensor("ids", "INT32", TOKENS, minimum=0, maximum=30_521)]
    return model_of(
        module, inputs, [tensor("y", "FP32", width)], name="bert", max_batch=largest, max_delay_ms=5.0, **batching
    )


async def _of_policy(block: Block, policy: str, largest: int) -> Data:
    found: Data = {}
    calls, seconds = ids(64, TOKENS), block.seconds(_RUN_S)
    module = built(block, lambda: whole_bert(block.quick))
    begun = time.monotonic()
    async with engine_of(block, own_setup(policy, largest, measures_s=1.5)) as engine:
        served = await started(engine, bert_model(module, block.quick, largest, policy=policy))
        found["times_from"] = await ready(engine, served, 0.5 if block.quick else 6.0)
        found["batch_ms"] = [round(ns / 1e6, 4) for ns in served.gauges().plan.batch_ns]
        found["load_s"] = round(time.monotonic() - begun, 1)
        found["closed"] = await closed_loop(served, calls, 4 * largest, seconds / 2)
        peak = block.found.setdefault("peak_rows_s", found["closed"]["rows_s"])
        found["loads"] = []
        for number, share in enumerate(SHARES):
            found["loads"].append(await open_loop(served, calls, Rate(share * peak, number), seconds))
    return found
