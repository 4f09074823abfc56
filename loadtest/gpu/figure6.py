"""Ebird's Figure 6: the cost of copying inputs one by one, and of computing a batch in parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from app.contract import Model, TensorSpec
from app.engine.devices.streams.memory.pool import Copies, StreamPool
from app.engine.devices.streams.runtime import perform
from app.models.base import normalise
from app.models.placement import Placement, place

from . import model_folders
from .data import PIXELS
from .driven_device import DrivenDevice, Options
from .platforms import Platform, together

ROWS = 256
_WARM = 3  # runs before the counted ones


def _images(pixels: int) -> TensorSpec:
    shape = (3, pixels, pixels)
    return TensorSpec("images", "FP32", shape, ("",) * 3, shape)


def powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def figure6a(platform: Platform, repeats: int, rows: int = ROWS, pixels: int = PIXELS) -> dict[str, Any]:
    """Figure 6a: `rows` images of float32 from pinned memory to the device, in 1 to `rows` copies on one stream.

    Timed with events around all copies, launches included; medians of `repeats` runs. "bare" is copies alone; "slots"
    is what the engine does for a call of that many rows: one copy and an event behind it.
    """
    runtime = platform.runtime
    spec = _images(pixels)
    pool = StreamPool([spec], rows, Copies(), (runtime.pinned, runtime.empty), lambda *_: None)
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
    """Figure 6b: total time of N workers of M rows at once, N x M = 256, against one batch of 256.

    `options`: rows, the largest N, and whether to run without graphs as well (a second at 256 x 1). Rows are already on
    the device, as in the paper. "Bare" is torch alone with a stream for each part, eager and as graphs, timed with
    events around all of it. "Engine" is a StreamDevice with N workers of M rows, from the first push to the last
    report, results in pinned memory, timed by the host. Medians of `repeats` runs. Torch has 32 streams of each
    priority, and the hardware as many queues; more workers than that share them.
    """
    rows, most, eager = options
    cells = []
    for count in powers(min(rows, most)):
        size = rows // count
        cell: dict[str, Any] = {"workers": count, "size": size}
        cell |= bare(platform, model_folders.read(folder, rows), precision, (count, size, repeats), eager)
        with DrivenDevice(
            platform, model_folders.read(folder, rows), Options((size,) * count, precision=precision)
        ) as driven:
            driven.warm([size])
            cell["engine_ms"] = [driven.burst(size) for _ in range(_WARM + repeats)][_WARM:]
            cell["engine_graphs"] = driven.captured
        cells.append(cell)
    return {"model": folder.name, "precision": precision, "rows": rows, "cells": cells}


def bare(platform: Platform, model: Model, precision: str, shape: tuple[int, int, int], eager: bool) -> dict[str, Any]:
    """Times with torch alone and one set of weights. `shape`: streams, rows on each, runs."""
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
    """The model on the device, and random rows there."""
    placed: list[Model] = []
    inputs: list[torch.Tensor] = []
    device = platform.runtime.device

    def move() -> None:
        placed.append(place(model, Placement(device=device, precision=precision)))
        inputs.extend(values.to(device) for values in model_folders.rows_of(model, rows))

    perform(platform.runtime, platform.gate, move)
    return placed[0], inputs


def capture(
    platform: Platform, streams: Sequence[Any], works: Sequence[Callable[[], list[torch.Tensor]]]
) -> list[tuple[Any, Callable[[], object]]]:
    """Capture each work as a graph with its own memory and run it once; returns (stream, replay) pairs.

    Graphs are captured on their own streams, as the engine does, because a graph keeps the address of its stream's
    workspace. Beyond torch's 32 streams graphs share workspaces: their times are right, their values are not.
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
    """A captured graph and its outputs, whose memory must live as long as the graph may run."""

    def __init__(self, replay: Callable[[], None], outputs: list[torch.Tensor]) -> None:
        self._replay = replay
        self.outputs = outputs

    def __call__(self) -> None:
        self._replay()


def forward(model: Model, inputs: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
    """A function that computes the model's outputs for these inputs, to be run on a stream."""
    return lambda: normalise(model.call(*inputs), model.info.outputs)


def issue_us(platform: Platform, copies: int = 256, pixels: int = PIXELS) -> float:
    """Host time in microseconds to enqueue one row's copy and its event: what a request costs the launcher."""
    runtime = platform.runtime
    spec = _images(pixels)
    pool = StreamPool([spec], copies, Copies(), (runtime.pinned, runtime.empty), lambda *_: None)
    stream = runtime.stream()
    for slot in range(copies):
        pool.copy_in(runtime, stream, range(slot, slot + 1))
    runtime.synchronize(pool.events[copies - 1])
    begin = time.perf_counter()
    for slot in range(copies):
        pool.copy_in(runtime, stream, range(slot, slot + 1))
    return (time.perf_counter() - begin) / copies * 1e6
