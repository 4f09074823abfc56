"""The effect of each part of the engine: graphs, workers, push depth, precision, shared weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from app.engine.devices.streams.runtime import perform

from . import model_folders
from .driven_device import DrivenDevice, Loop, Options, rounds
from .figure6 import capture, forward, on_device
from .platforms import Platform, together

WORKERS = 6
DEPTHS = (1, 2, 3)
_WARM = 3


@dataclass(frozen=True, slots=True)
class Scale:
    """`rounds` of `seconds` for each cell. `sizes`: batch sizes; the largest is also the workers' capacity."""

    rounds: int = 3
    seconds: float = 0.15
    sizes: tuple[int, ...] = (1, 8, 32)
    workers: int = WORKERS
    repeats: int = 20


def engine(platform: Platform, folder: Path, precision: str, scale: Scale) -> list[dict[str, Any]]:
    """Rows per second in a closed loop through StreamDevice, each row copied to the device and each result back.

    With graphs: 1 to 6 workers at push depth 2 for each batch size, then depths 1 and 3 with one worker and with all.
    Without graphs: one worker and all workers at depth 2. The loops of one device take turns. Times are the host's,
    from report to report.
    """
    several = range(1, scale.workers + 1)
    ends = (1, scale.workers)
    loops = [Loop(workers, size, 2) for workers in several for size in scale.sizes]
    loops += [Loop(workers, size, depth) for workers in ends for size in scale.sizes for depth in (1, 3)]
    found = _loops(platform, folder, precision, scale, loops)
    return found + _loops(
        platform, folder, precision, scale, [Loop(workers, size, 2) for workers in ends for size in scale.sizes], False
    )


def _loops(
    platform: Platform, folder: Path, precision: str, scale: Scale, loops: Sequence[Loop], graphs: bool = True
) -> list[dict[str, Any]]:
    largest = max(scale.sizes)
    options = Options((largest,) * scale.workers, graphs, precision, max(DEPTHS))
    with DrivenDevice(platform, model_folders.read(folder, largest), options) as driven:
        driven.warm(scale.sizes)
        driven.closed(Loop(scale.workers, largest, 2), 4 * scale.seconds)  # warms up: clock rates rise under load
        return [
            {"precision": precision, "graphs": graphs, "captured": driven.captured, **asdict(loop), "rows_s": rates}
            for loop, rates in rounds(driven, loops, scale.rounds, scale.seconds).items()
        ]


def sharing(platform: Platform, folder: Path, precision: str, scale: Scale) -> list[dict[str, Any]]:
    """Total time of one unit on each stream, with one shared set of weights and with a copy for each stream.

    Torch alone, CUDA graphs, rows already on the device; timed with events around all streams. Weights that all
    streams read may stay in the cache.
    """
    count, largest = scale.workers, max(scale.sizes)
    runtime = platform.runtime
    streams = [runtime.stream() for _ in range(count)]
    placed, inputs = on_device(platform, model_folders.read(folder, largest), precision, count * largest)
    models = [placed]
    cells = []
    for copies in (1, count):
        while len(models) < copies:
            perform(runtime, platform.gate, lambda: models.append(replace(placed, call=copy.deepcopy(placed.call))))
        for size in scale.sizes:
            works = [
                forward(models[index % copies], [rows[index * size : (index + 1) * size] for rows in inputs])
                for index in range(count)
            ]
            with torch.inference_mode():
                graphs = capture(platform, streams, works)
                times = [together(platform, graphs) for _ in range(_WARM + scale.repeats)][_WARM:]
            cells.append({"precision": precision, "copies": copies, "size": size, "ms": times})
            del works, graphs
            platform.settle()
    return cells


def effects(platform: Platform, folder: Path, precisions: Sequence[str], scale: Scale) -> dict[str, Any]:
    """All effects for one model."""
    cells: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    for precision in precisions:
        cells += engine(platform, folder, precision, scale)
        shared += sharing(platform, folder, precision, scale)
    return {"model": folder.name, "cells": cells, "sharing": shared}
