"""Ebird's Figure 6: does it cost anything to copy inputs one by one, and to compute a batch in parts?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from app.contract import Model, TensorSpec
from app.engine.devices.streams.pool import Copies, StagedPool
from app.engine.devices.streams.runtime import perform
from app.models.base import normalise
from app.models.placement import Placement, place

from . import folders
from .data import PIXELS
from .driven_device import DrivenDevice, Options
from .platforms import Platform, together

ROWS = 256
_WARM = 3  # runs before those that count


def _images(pixels: int) -> TensorSpec:
    shape = (3, pixels, pixels)
    return TensorSpec("images", "FP32", shape, ("",) * 3, shape)


def powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def figure6a(platform: Platform, repeats: int, rows: int = ROWS, pixels: int = PIXELS) -> dict[str, Any]:
    """Figure 6a: `rows` images of float32 from pinned memory to the device, in 1 to `rows` copies on one stream.

    Timed with events around all copies, so launches are part of it; medians of `repeats` runs. "bare" is nothing but
    copies; "slots" is what the engine does for calls of so many rows: a copy each, and an in-event behind it.
    """
    runtime = platform.runtime
    spec = _images(pixels)
    pool = StagedPool([spec], rows, Copies(), (runtime.pinned, runtime.empty), lambda *_: None)
    source, target = pool.slabs[0], pool.rows[0]
    assert source is not None
    source.copy_(torch.rand(source.shape, generator=torch.Generator().manual_seed(0)))
    stream = runtime.stream()
    cells = []
    for pieces in powers(rows):
        each = rows // pieces
        runs = [range(first, first + each) for first in range(0, rows, each)]

        def bare(runs: Sequence[range] = runs) -> None:
            for run in runs:
                target[run.start : run.stop].copy_(source[run.start : run.stop], non_blocking=True)

        def slots(runs: Sequence[range] = runs) -> None:
            for run in runs:
                pool.copy_in(runtime, stream, run)

        alone = [
            _on_stream(platform, stream, lambda work=bare: runtime.enqueue(stream, work))
            for _ in range(_WARM + repeats)
        ]
        events = [_on_stream(platform, stream, slots) for _ in range(_WARM + repeats)]
        cells.append({"pieces": pieces, "bare_ms": alone[_WARM:], "slots_ms": events[_WARM:]})
    if not torch.equal(target.cpu(), source):  # after all timing: this one synchronises
        raise RuntimeError("what was copied differs from what was sent")
    return {"rows": rows, "row_bytes": source[0].nbytes, "cells": cells}


def _on_stream(platform: Platform, stream: Any, work: Callable[[], object]) -> float:
    begin = platform.mark(stream)
    work()
    return platform.between(begin, platform.mark(stream))


def figure6b(
    platform: Platform, folder: Path, precision: str, repeats: int, options: tuple[int, int, bool]
) -> dict[str, Any]:
    """Figure 6b: N workers of M rows, N x M = 256, at once; the total time against one batch of 256.

    `options`: rows, the most workers, whether N runs of M rows may be launched without graphs (a second at 256 x 1).
    Rows are on the device already, as in the paper. Bare: a stream each, torch alone, eagerly and as graphs; events
    around all of it. Engine: a StreamDevice with N workers of M rows, from the first push to the last report, results
    in pinned memory; the host's clock. Medians of `repeats` runs. torch has 32 streams of a priority, and the hardware
    as many queues: beyond, workers share them.
    """
    rows, most, eager = options
    cells = []
    for count in powers(min(rows, most)):
        size = rows // count
        cell: dict[str, Any] = {"workers": count, "size": size}
        cell |= bare(platform, folders.read(folder, rows), precision, (count, size, repeats), eager)
        with DrivenDevice(
            platform, folders.read(folder, rows), Options((size,) * count, precision=precision)
        ) as driven:
            driven.warm([size])
            cell["engine_ms"] = [driven.burst(size) for _ in range(_WARM + repeats)][_WARM:]
            cell["engine_graphs"] = driven.captured
        cells.append(cell)
    return {"model": folder.name, "precision": precision, "rows": rows, "cells": cells}


def bare(platform: Platform, model: Model, precision: str, shape: tuple[int, int, int], eager: bool) -> dict[str, Any]:
    """`shape`: streams, rows on each, runs. One set of weights; streams are torch's own."""
    count, size, repeats = shape
    runtime = platform.runtime
    streams = [runtime.stream() for _ in range(count)]
    placed, inputs = on_device(platform, model, precision, count * size)
    parts = [[values[first : first + size] for values in inputs] for first in range(0, count * size, size)]
    works = [forward(placed, part) for part in parts]
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for stream, work in zip(streams, works, strict=True):
            perform(runtime, stream, work)
        if eager:
            pairs = list(zip(streams, works, strict=True))
            found["eager_ms"] = [together(platform, pairs) for _ in range(_WARM + repeats)][_WARM:]
        graphs = capture(platform, streams, works)
        found["graphs_ms"] = [together(platform, graphs) for _ in range(_WARM + repeats)][_WARM:]
    del graphs, works, placed, inputs, parts
    platform.settle()
    return found


def on_device(platform: Platform, model: Model, precision: str, rows: int) -> tuple[Model, list[torch.Tensor]]:
    """The model moved, and random rows on the device."""
    placed: list[Model] = []
    inputs: list[torch.Tensor] = []
    device = platform.runtime.device

    def move() -> None:
        placed.append(place(model, Placement(device=device, precision=precision)))
        inputs.extend(values.to(device) for values in folders.rows_of(model, rows))

    perform(platform.runtime, platform.gate, move)
    return placed[0], inputs


def capture(
    platform: Platform, streams: Sequence[Any], works: Sequence[Callable[[], list[torch.Tensor]]]
) -> list[tuple[Any, Callable[[], object]]]:
    """Each work as a graph with memory of its own, and the stream it runs on. They are run once.

    Captured on streams of their own, as the engine does: graphs keep the address of their stream's workspace. Beyond
    torch's 32 streams graphs share workspaces, so their values are not to be used; their times are the same.
    """
    runtime = platform.runtime
    graphs = []
    for stream, work in zip(streams, works, strict=True):
        apart = runtime.stream()
        perform(runtime, apart, work)
        replay, outputs = runtime.capture(apart, runtime.graph_pool(), work)
        graphs.append((stream, _Replay(replay, outputs)))
    for stream, replay in graphs:
        perform(runtime, stream, replay)
    return graphs


class _Replay:
    """A graph, and what it writes: the memory stays while it may run."""

    def __init__(self, replay: Callable[[], None], outputs: list[torch.Tensor]) -> None:
        self._replay = replay
        self.outputs = outputs

    def __call__(self) -> None:
        self._replay()


def forward(model: Model, inputs: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """The model's outputs for these inputs, as something to be done on a stream."""
    return lambda: normalise(model.call(*inputs), model.info.outputs)


def issue_us(platform: Platform, copies: int = 256, pixels: int = PIXELS) -> float:
    """Microseconds of the host to enqueue one row's copy with its in-event: the launcher's price of a request."""
    runtime = platform.runtime
    spec = _images(pixels)
    pool = StagedPool([spec], copies, Copies(), (runtime.pinned, runtime.empty), lambda *_: None)
    stream = runtime.stream()
    for slot in range(copies):
        pool.copy_in(runtime, stream, range(slot, slot + 1))
    runtime.synchronize(pool.events[copies - 1])
    begin = time.perf_counter()
    for slot in range(copies):
        pool.copy_in(runtime, stream, range(slot, slot + 1))
    return (time.perf_counter() - begin) / copies * 1e6
