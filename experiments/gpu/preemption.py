"""A real-time ResNet-50 beside batches of BERT-large, by torch alone (REEF): without the engine, so the least there is.

A batch of the bulk is one graph, or 4 or 8 of them; `launched` bounds how many of these are queued or running.

For comparison, on other hardware: REEF on an AMD MI50 preempts within tens of microseconds, since it kills kernels.
REEF-N, which cannot kill them, takes 71 to 288 us on a V100; GPreempt, with a changed driver, less than 40 us.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import torch

from experiments.gpu.blocks import Block, Data
from experiments.gpu.card import HostCard, Replay, card_of, device_ms, now, spread_us
from experiments.gpu.graphs import OnCard, run_all

_GAPS_S = (0.005, 0.015)
_SOME_SMS = 108


class Plan(NamedTuple):
    """`on`: the stream of the real-time rows. `launched` 0: there is no bulk."""

    on: str
    stages: int = 1
    launched: int = 0
    sms: int = 0


PLANS = {
    "alone": Plan("high"),
    "one stream": Plan("low", 1, 2),
    "two streams": Plan("normal", 1, 2),
    "priority": Plan("high", 1, 2),
    "priority, 8 stages, 1 launched": Plan("high", 8, 1),
    "priority, 8 stages, 2 launched": Plan("high", 8, 2),
    "priority, 4 stages, 1 launched": Plan("high", 4, 1),
    "priority, 4 stages, 2 launched": Plan("high", 4, 2),
    "one stream, 8 stages, 1 launched": Plan("low", 8, 1),
    f"bulk on {_SOME_SMS} multiprocessors": Plan("high", 1, 2, _SOME_SMS),
}


def measure(block: Block) -> None:
    with torch.inference_mode():
        card = card_of(block)
        urgent = OnCard(block, card, "resnet50", card.half)
        bulk = OnCard(block, card, "bert large", card.half)
        rows, samples = (2, 4) if block.quick else (32, 250)
        streams = {"low": card.stream(), "normal": card.stream(), "high": card.stream(-1)}
        one = urgent.graphs(1, 1, card.stream())
        cut = {n: bulk.graphs(rows, n, streams["low"])[0] for n in (1, 4, 8)}
        found: Data = {}
        whole_ms = {n: device_ms(card, streams["low"], partial(run_all, stages), 5) for n, stages in cut.items()}
        block.keep(rows=rows, bulk_ms=whole_ms, plans=found)
        for name, plan in PLANS.items():
            if block.fits(name, 0.013 * samples):
                with block.noting(name):
                    found[name] = _of_plan(card, plan, streams, one, cut, bulk, rows, samples)


def _of_plan(
    card: HostCard, plan: Plan, streams: dict[str, Any], one: Any, cut: dict[int, list[Replay]], bulk: OnCard,
    rows: int, samples: int,
) -> Data:  # fmt: skip
    low, stages = streams["low"], cut[plan.stages]
    if plan.sms:
        low = card.some_sms(plan.sms)
        stages = bulk.graphs(rows, plan.stages, low)[0]
    beside = Bulk(card, low, stages, plan.launched)
    with beside:
        counted, begun = beside.ended, now()
        latencies = _asked(card, one, streams[plan.on], samples)
        rate = (beside.ended - counted) * rows / (now() - begun)
    if beside.failed:
        raise RuntimeError("the thread of the bulk has ended")
    return {**spread_us(latencies), "bulk_rows_s": round(rate, 1)}


class Bulk:
    """A thread that runs batches while it is entered. `ended`: batches so far."""

    def __init__(self, card: HostCard, stream: Any, stages: list[Replay], launched: int) -> None:
        self.ended = 0
        self.failed = False
        self._card, self._stream, self._stages, self._launched = card, stream, stages, launched
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        if self._launched:
            self._thread.start()
            time.sleep(0.05)

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._launched:
            self.failed = not self._thread.is_alive()
            self._thread.join(10)
        self._card.sync()

    def _run(self) -> None:
        flying: deque[Any] = deque()
        with torch.inference_mode():
            while not self._over.is_set():
                for stage in self._stages:
                    while len(flying) >= self._launched:
                        flying.popleft().synchronize()
                    with self._card.on(self._stream):
                        stage()
                    flying.append(self._card.event())
                    flying[-1].record(self._stream)
                self.ended += 1


def _asked(card: HostCard, one: Any, stream: Any, samples: int) -> list[float]:
    """Latencies of single rows at random moments, copies included."""
    (replay,), given, out = one
    row, done, result = card.pinned(given.nbytes), card.event(), card.pinned(out.nbytes)
    bytes_in, bytes_out = (tensor.view(-1).view(torch.uint8) for tensor in (given, out))
    card.sync()
    chance = random.Random(0)
    found = []
    for _ in range(samples):
        time.sleep(chance.uniform(*_GAPS_S))
        asked = now()
        with card.on(stream):
            bytes_in.copy_(row, non_blocking=True)
            replay()
            result.copy_(bytes_out, non_blocking=True)
            done.record(stream)
        done.synchronize()
        found.append(now() - asked)
    return found
