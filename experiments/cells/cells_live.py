"""The live part of `cells`: the same weights served by their cell and whole, under the same Poisson arrivals.

One server has all models, and one of them is asked at a time. Rates and bucket widths take turns over the models, so
that a change of the machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from experiments.common.folders import vector, write_model
from experiments.common.live import right, rotated
from loadtest.common.servers import MeasurementError, Server, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session
from loadtest.generator.stats import Repeat, percentile
from loadtest.models.lstm.model import build
from planner.drawn_lengths import Lengths

LARGEST = 64  # rows of a batch
LONGEST = 330  # tokens
WORDS = 10_000
DATASETS = {"WMT-like": f"lognormal:22:0.65:1:{LONGEST}", "fixed 20": "fixed:20"}
WIDTHS = (10, 20, 40, LONGEST)  # of the buckets of padded rows; the last is one bucket
BODIES = 2000  # different requests
IN_FLIGHT = 128  # in the closed loop: two batches
TRIES, APART = 5, 1.2  # rates tried for a peak, from the most of the closed loop on; the factor until it lies between
CONNECTIONS, TIMEOUT_S = 1024, 120.0  # enough for the queue of an overloaded run
MAX_QUEUE = 4096

CELLS, PACKED = "cells", "packed"
Said = Callable[[str], None]


def padded(width: int) -> str:
    """The name of the model with buckets of this width."""
    return f"padded{width}"


def write_models(folder: Path, policy: str, whole_policy: str) -> None:
    """A repository with the model by its cell, packed, and padded with buckets of each width."""

    ids = vector("ids", "tokens", datatype="INT64", max_shape=[LONGEST], minimum=0, maximum=WORDS - 1)
    lengths = vector("lengths", datatype="INT64", lengths="ids")
    outputs = [vector("logits", 10)]
    batching = {"max_batch": LARGEST, "policy": whole_policy}
    by_cell = {**batching, "policy": policy}
    write_model(folder / CELLS, "loadtest.models.lstm.model:build", [ids], outputs, batching=by_cell, recurrent=True)
    source = "experiments.cells.cells_models"
    write_model(folder / PACKED, f"{source}:packed", [ids, lengths], outputs, batching=batching)
    for width in WIDTHS:
        ends = [*range(width, LONGEST, width), LONGEST]
        buckets = {"length_buckets": ends} if len(ends) > 1 else {}
        inputs = [ids, lengths]
        write_model(folder / padded(width), f"{source}:padded", inputs, outputs, batching={**batching, **buckets})


def write_requests(path: Path, spec: str, seed: int) -> list[list[int]]:
    """V2 requests of a row each, the longest first, with lengths and tokens of this seed. Returns the tokens."""
    random = np.random.default_rng([seed, 5])
    lengths = sorted(Lengths(spec, [seed, 4]).draw(BODIES).tolist(), reverse=True)
    rows = [random.integers(0, WORDS, length).tolist() for length in lengths]
    bodies = [
        {"inputs": [{"name": "ids", "shape": [1, len(row)], "datatype": "INT64", "data": row}]} for row in rows
    ]  # fmt: skip
    path.write_text(json.dumps(bodies), encoding="ascii")
    return rows


def serve(folder: Path, threads: int) -> Server:
    """A server with one worker, which measures nothing beside the load."""
    return starling(
        ("--models", str(folder), "--max-batch", str(LARGEST), "--workers", str(LARGEST), "--threads", str(threads),
         "--max-queue", str(MAX_QUEUE), "--profile-dir", str(folder / ".profiles"), "--profile-budget-s", "0")
    )  # fmt: skip


def check_answers(server: Server, models: Sequence[str], rows: Sequence[Sequence[int]]) -> float:
    """The largest difference of an answer from the plain module's. Raises MeasurementError beyond rounding."""
    plain = build().eval()
    worst = 0.0
    for row in [*rows[:: max(1, len(rows) // 12)], rows[-1]]:
        with torch.inference_mode():
            wanted = plain(torch.tensor([row])).numpy()
        body = {"inputs": [{"name": "ids", "shape": [1, len(row)], "datatype": "INT64", "data": list(row)}]}
        for model in models:
            status, _, answer = server.call("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())
            if status != 200:
                raise MeasurementError(f"{model}: status {status}, {answer[:200]!r}")
            got = np.array(json.loads(answer)["outputs"][0]["data"])
            worst = max(worst, float(np.abs(got - wanted).max()))
            if not np.allclose(got, wanted, rtol=1e-3, atol=1e-4):
                raise MeasurementError(f"{model}: another answer than the plain module's, by {worst:g}")
    return worst


def rows_per_second(repeat: Repeat) -> float:
    """Of a closed loop, by Little's law: whole batches end at once, and to count them in seconds is rough.

    Requests of the first third, which fill the queue, do not count where there are others.
    """
    later = repeat.latency_ns[repeat.intended_ns > repeat.duration_s * 1e9 / 3]
    return IN_FLIGHT / (float((later if len(later) else repeat.latency_ns).mean()) / 1e9)


class Search:
    """Of the largest rate that keeps a bound. `rate` is what to try next, and at last the best guess."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._kept: float | None = None
        self._missed: float | None = None

    def told(self, *, kept: bool) -> None:
        """Whether `rate` kept the bound."""
        if kept:
            self._kept = self.rate
        else:
            self._missed = self.rate
        if self._kept is not None and self._missed is not None:
            self.rate = (self._kept + self._missed) / 2
        else:
            self.rate *= APART if kept else 1 / APART


class DataSet:
    """One set of lengths: tunes the baseline, finds the peaks, measures latencies at shares of the baseline's."""

    def __init__(self, name: str, server: Server, data: Path, chosen: argparse.Namespace, say: Said) -> None:
        self.name = name
        self._chosen = chosen
        self._say = lambda text: say(f"{name}: {text}")
        self._plan = BenchPlan(
            url=server.url, model=CELLS, payload="binary", data=data, seed=chosen.seed,
            connections=CONNECTIONS, timeout_s=TIMEOUT_S, rate=1.0,
        )  # fmt: skip
        self._sessions: dict[str, Session] = {}
        self.lag_ms = 0.0

    async def run(self) -> dict[str, Any]:
        lengths = set(Lengths(DATASETS[self.name], [0]).draw(BODIES).tolist())
        widths = WIDTHS if len(lengths) > 1 else WIDTHS[-1:]
        async with AsyncExitStack() as stack:
            for model in (CELLS, PACKED, *map(padded, widths)):
                self._sessions[model] = await stack.enter_async_context(Session(replace(self._plan, model=model)))
            most = await self._most(list(self._sessions))
            best = max(map(padded, widths), key=lambda model: most[model])
            # rows of one length need no padding: only the faster way to run them is of interest
            whole = [PACKED, best] if len(widths) > 1 else [max(PACKED, best, key=lambda model: most[model])]
            contenders = [CELLS, *whole]
            peaks = await self._peaks(contenders, most)
            base = max(peaks[model] for model in whole)
            loads = [await self._load(contenders, share, share * base) for share in self._chosen.shares]
        return {
            "dataset": self.name, "spec": DATASETS[self.name], "most": most, "padded": best, "whole": whole,
            "peaks": peaks, "loads": loads, "lag_p99_ms": self.lag_ms,
        }  # fmt: skip

    async def _once(self, model: str, plan: BenchPlan, seed: int, duration_s: float) -> Repeat:
        return right(model, await self._sessions[model].once(plan, seed, duration_s))

    async def _most(self, models: Sequence[str]) -> dict[str, float]:
        """Rows per second with IN_FLIGHT requests in flight: medians over rounds in which each model has its turn."""
        found: dict[str, list[float]] = {model: [] for model in models}
        plan = replace(self._plan, rate=None, concurrency=IN_FLIGHT)
        seconds = self._chosen.closed_s
        for number in range(-1, self._chosen.rounds):  # the first warms up
            for model in models:
                repeat = await self._once(model, plan, self._chosen.seed + number + 1, seconds if number >= 0 else 0.5)
                if number >= 0:
                    found[model].append(rows_per_second(repeat))
        for model, rates in found.items():
            self._say(f"{model}: {median(rates):.0f} rows/s at most")
        return {model: median(rates) for model, rates in found.items()}

    async def _peaks(self, models: Sequence[str], most: dict[str, float]) -> dict[str, float]:
        """The largest Poisson rate whose 99th percentile stays within the bound, searched for all models in turn."""
        searches = {model: Search(most[model]) for model in models}
        for number in range(TRIES):
            for model, search in searches.items():
                plan, rate = replace(self._plan, rate=search.rate), search.rate
                repeat = await self._once(model, plan, self._chosen.seed + 100 + number, self._chosen.try_s)
                p99 = percentile(repeat.completed, 0.99) or 0.0
                search.told(kept=p99 <= self._chosen.p99_ms)
                self._say(f"{model}: {rate:.0f}/s: p99 {p99:.0f} ms")
        return {model: search.rate for model, search in searches.items()}

    async def _load(self, models: Sequence[str], share: float, rate: float) -> dict[str, Any]:
        """Latencies of all models at one rate: the median over seeds of each percentile."""
        found: dict[str, list[Repeat]] = {model: [] for model in models}
        for number in range(self._chosen.repeats):
            for model in rotated(models, number):
                plan = replace(self._plan, rate=rate)
                found[model].append(await self._once(model, plan, self._chosen.seed + number, self._chosen.seconds))
        self.lag_ms = max(
            self.lag_ms, *(percentile(one.lag_ns, 0.99) or 0.0 for runs in found.values() for one in runs)
        )
        load: dict[str, Any] = {"share": share, "rate": rate}
        for model, runs in found.items():
            load[model] = {
                "p50_ms": median(percentile(one.completed, 0.5) or 0.0 for one in runs),
                "p99_ms": median(percentile(one.completed, 0.99) or 0.0 for one in runs),
                "requests": sum(len(one.completed) for one in runs),
            }
        told = ", ".join(f"{model} p50 {load[model]['p50_ms']:.0f} p99 {load[model]['p99_ms']:.0f}" for model in models)
        self._say(f"{share:g} of the peak, {rate:.0f}/s: {told} ms")
        return load


async def datasets(
    server: Server, data: dict[str, Path], chosen: argparse.Namespace, say: Said
) -> list[dict[str, Any]]:
    """All of them, one after the other."""
    return [await DataSet(name, server, path, chosen, say).run() for name, path in data.items()]
