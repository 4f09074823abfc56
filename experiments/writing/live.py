"""The live part of `writing`: one server has all models, which are asked one at a time, in turn."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.common.live import right
from experiments.writing import models
from experiments.writing.streams import bodies_of, first_pieces
from loadtest.common.servers import Server, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session
from loadtest.generator.stats import Repeat, percentile
from planner.drawn_lengths import Lengths

CELLS = "steps"  # the model that is served step by step
SIZES, WIDTHS = (1, 16, 32), (32, models.READ)  # of whole batches, and of the buckets of what they read
LARGEST = max(SIZES)
LENGTHS = f"lognormal:22:0.65:2:{models.WRITTEN}"  # WMT-like; what is written is about as long as what is read
BODIES = 400
IN_FLIGHT = 64
TIMEOUT_S = 300.0
LOADING_S = 600.0  # six models of GPT-2's size, on a machine that does other things too
_TOGETHER_S = 0.02


def named(size: int, width: int) -> str:
    return f"whole{size}w{width}"


def write_models(folder: Path, weights: Path, kind: str) -> list[str]:
    """Returns their names, ours first."""
    models.write_cells(folder / CELLS, weights, kind, LARGEST)
    names = [CELLS]
    for size in SIZES:
        for width in WIDTHS if size > 1 else WIDTHS[-1:]:
            ends = [*range(width, models.READ, width), models.READ]
            names.append(named(size, width))
            models.write_whole(folder / names[-1], weights, size, ends if len(ends) > 1 else [])
    return names


def write_requests(folder: Path, seed: int) -> dict[str, Path]:
    """V2 requests of a row each, for ours and for whole batches: the same tokens and lengths."""
    random = np.random.default_rng([seed, 5])
    read = Lengths(LENGTHS, [seed, 4]).draw(BODIES)
    ratio = random.lognormal(0.05, 0.25, BODIES)  # of a translation to its sentence
    written = np.clip(np.rint(read * ratio), 2, models.WRITTEN).astype(int)
    rows = [random.integers(97, 123, length) for length in read]
    text = [
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [bytes(row.tolist()).decode()]}],
         "parameters": {"max_new_tokens": int(most)}}
        for row, most in zip(rows, written, strict=True)
    ]  # fmt: skip
    ids = [
        {"inputs": [{"name": "ids", "shape": [1, len(row)], "datatype": "INT64", "data": row.tolist()},
                    {"name": "most", "shape": [1], "datatype": "INT64", "data": [int(most)]}]}
        for row, most in zip(rows, written, strict=True)
    ]  # fmt: skip
    paths = {CELLS: folder / "text.json", "": folder / "ids.json"}
    for path, bodies in zip(paths.values(), (text, ids), strict=True):
        path.write_text(json.dumps(bodies), encoding="ascii")
    return paths


def serve(folder: Path, threads: int) -> Server:
    """A server with one worker, which measures nothing beside the load."""
    return starling(
        ("--models", str(folder), "--workers", str(LARGEST), "--threads", str(threads),
         "--profile-dir", str(folder / ".profiles"), "--profile-budget-s", "0", "--pool-mib", "2048")
    )  # fmt: skip


def rows_per_second(repeat: Repeat) -> float:
    """Of a closed loop: rows that ended after its first quarter, from the end of a batch to that of a later one.

    Rows of a batch are answered within `_TOGETHER_S`; a batch that was cut in two would count for more than its time.
    By Little's law it would be too much: of a run that is not much longer than a request takes, the slowest requests
    have not ended. 0 where no two batches ended: the run is too short.
    """
    ends = np.sort(repeat.intended_ns + repeat.latency_ns) / 1e9
    of_batches = ends[:-1][np.diff(ends) > _TOGETHER_S]
    of_batches = of_batches[(of_batches >= repeat.duration_s / 4) & (of_batches <= repeat.duration_s)]
    if len(of_batches) < 2:
        return 0.0
    first, last = of_batches[0], of_batches[-1]
    return float(np.count_nonzero((ends > first) & (ends <= last)) / (last - first))


async def measure(
    server: Server, names: list[str], paths: dict[str, Path], chosen: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    """Rows a second of all models in a closed loop, then latencies of ours and the best whole one at shares of that,
    and of ours how long until the first piece of a text."""
    plan = BenchPlan(
        url=server.url, model=CELLS, payload="json", seed=chosen.seed, connections=256,
        timeout_s=TIMEOUT_S, rate=1.0,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        sessions = {
            name: await stack.enter_async_context(
                Session(replace(plan, model=name, data=paths[CELLS if name == CELLS else ""]))
            )
            for name in names
        }

        async def once(name: str, plan: BenchPlan, seed: int, seconds: float) -> Repeat:
            return right(name, await sessions[name].once(plan, seed, seconds))

        closed = replace(plan, rate=None, concurrency=IN_FLIGHT)
        rates: dict[str, list[float]] = {name: [] for name in names}
        for number in range(chosen.rounds):
            for name in names[number % 2 :: 1] + names[: number % 2]:
                rates[name].append(rows_per_second(await once(name, closed, number, chosen.closed_s)))
                say(f"{name}: {rates[name][-1]:.2f} rows/s")
        best = max((name for name in names[1:]), key=lambda name: median(rates[name]))
        alone = next(name for name in names if name.startswith("whole1w"))
        loads = []
        for share in chosen.shares:
            load: dict[str, Any] = {"share": share, "rate": share * median(rates[best])}
            for name in (CELLS, best):
                runs = [
                    await once(name, replace(plan, rate=load["rate"]), number, chosen.seconds)
                    for number in range(chosen.rounds)
                ]
                load["steps" if name == CELLS else "whole"] = {
                    f"p{round(100 * part)}_ms": median(percentile(one.completed, part) or 0.0 for one in runs)
                    for part in (0.5, 0.99)
                }
            waits = [
                wait
                for number in range(chosen.rounds)
                for wait in await first_pieces(
                    server.port, CELLS, bodies_of(paths[CELLS]), load["rate"], chosen.seconds, number
                )
            ]
            load["first"] = {f"p{share}_ms": float(np.percentile(waits, share)) for share in (50, 99)}
            say(f"{load}")
            loads.append(load)
    return {"rates": rates, "best": best, "alone": alone, "loads": loads}
