"""Times of batches by their size, with graphs and eager; then N streams of M rows each (Ebird's premise).

`beside`: N graphs of M rows, each on a stream of its own, all at once. `behind`: the same graphs one after another.

For comparison, on other hardware: in Ebird's paper 256 rows take the same time on 1 to 64 streams, on a Titan RTX.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from experiments.gpu.blocks import Block, Data
from experiments.gpu.card import HostCard, Replay, card_of, device_ms
from experiments.gpu.graphs import OnCard, run_all


def measure(block: Block) -> None:
    card = card_of(block)
    found: Data = {}
    block.keep(rows_at_once=4 if block.quick else 32, models=found)
    with torch.inference_mode():
        for kind, dtype in (("bert", card.half), ("resnet50", card.half), ("resnet50", torch.float32)):
            name = f"{kind}, {str(dtype)[6:]}"
            if name not in found and block.fits(name, 6):
                found[name] = {"graph_ms": {}, "eager_ms": {}, "beside_ms": {}, "behind_ms": {}}
                with block.noting(name):
                    _of_model(block, card, OnCard(block, card, kind, dtype), name, found[name])


def _of_model(block: Block, card: HostCard, made: OnCard, name: str, of: Data) -> None:
    main, whole, times = card.stream(-1), 4 if block.quick else 32, 3 if block.quick else 20
    model = made.whole()
    for count in (1, 2) if block.quick else (1, 2, 4, 8, 16, 32, 64):
        rows = made.rows(count)
        of["graph_ms"][count] = device_ms(card, main, made.graphs(count, 1, main)[0][0], times)
        of["eager_ms"][count] = device_ms(card, main, partial(model, rows), times)
    block.keep()
    for n in (1, 2, 4, 8, 16, 32):
        if whole // n and block.fits(f"{name}, {n} streams", 1.5):
            streams = [card.stream() for _ in range(n)]
            replays = [made.graphs(whole // n, 1, stream)[0][0] for stream in streams]
            of["beside_ms"][n] = device_ms(card, main, _beside(card, main, streams, replays), times)
            of["behind_ms"][n] = device_ms(card, main, partial(run_all, replays), times)


def _beside(card: HostCard, main: Any, streams: list[Any], replays: list[Replay]) -> Replay:
    begin, ends = card.event(), [card.event() for _ in streams]

    def run() -> None:
        begin.record(main)
        for stream, replay, end in zip(streams, replays, ends, strict=True):
            stream.wait_event(begin)
            with card.on(stream):
                replay()
            end.record(stream)
        for end in ends:
            main.wait_event(end)

    return run
