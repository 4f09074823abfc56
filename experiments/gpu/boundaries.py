"""What a stage boundary costs, by torch alone: milliseconds of a batch by the wall, by number of stages.

`ahead`: all stages are launched at once. `decided`: the next is launched while one runs, and Python waits for each, as
the engine does. `waited`: the next is launched when one has ended. `us each`: what one boundary adds.

For comparison, on other hardware: DVABatch's paper has 0.29 ms for all boundaries of a batch, on a Titan RTX.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from experiments.gpu.blocks import Block, Data
from experiments.gpu.card import HostCard, Replay, card_of, timed
from experiments.gpu.graphs import OnCard

WAYS = {"ahead": 99, "decided": 1, "waited": 0}  # by how many stages the launches lead


def measure(block: Block) -> None:
    card = card_of(block)
    found: Data = {}
    block.keep(models=found)
    with torch.inference_mode():
        for kind in ("bert", "resnet50"):
            made = OnCard(block, card, kind, card.half)
            for count in (1, 2) if block.quick else (32, 1, 8):
                name = f"{kind}, {count} row{'s' * (count > 1)}"
                with block.noting(name):
                    found[name] = _of_batch(block, card, made, count, name)


def _of_batch(block: Block, card: HostCard, made: OnCard, count: int, name: str) -> Data:
    stream, events = card.stream(), [card.event() for _ in range(16)]
    of: Data = {way: {} for way in WAYS}
    for n in (1, 2, 4, 8, 16):
        if block.fits(f"{name}, {n} stages", 0.7):
            stages = made.graphs(count, n, stream)[0]
            for way, lead in WAYS.items():
                run = partial(_launched, card, stream, stages, events, lead)
                of[way][len(stages)] = round(float(np.median(timed(run, 3 if block.quick else 30))) * 1e3, 4)
    of["us_each"] = {
        way: round((ms[max(ms)] - ms[min(ms)]) * 1e3 / max(1, max(ms) - min(ms)), 1) for way, ms in of.items() if ms
    }
    return of


def _launched(card: HostCard, stream: Any, stages: list[Replay], events: list[Any], lead: int) -> None:
    with card.on(stream):
        for at, stage in enumerate(stages):
            stage()
            events[at].record(stream)
            if at >= lead:
                events[at - lead].synchronize()
    events[len(stages) - 1].synchronize()
