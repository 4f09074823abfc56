"""Draws one picture a paper from a simulated run: `python -m experiments.papers.pictures`. Writes docs/papers/*.png.

Each run is a handful of requests through the scheduler that serves, with the paper's policy. A block is a unit: as wide
as it took, one lane for each worker, with its rows written in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from app.scheduler.estimates.profile_format import parse
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, Klass, Outcome, PolicySpec, Program, Stage, Step, Unit, WorkerSpec
from loadtest.common.paths import DOCS
from loadtest.common.plots import saved_grid
from planner.node import PROGRAM, Node
from planner.simulated_device import SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

MS = 1_000_000
PAPERS = DOCS.parent / "papers"
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9ecae9", "#ffbf79")
SIZE = (8.0, 2.6)


class Ran(NamedTuple):
    """A unit that has run: milliseconds, the numbers of its rows' calls, and whether they are real-time."""

    worker: int
    begins: float
    ends: float
    calls: tuple[int, ...]
    stage: int
    realtime: bool


class Request(NamedTuple):
    at_ms: float
    steps: int = 1
    klass: Klass = Klass.REALTIME


class Watched(Scheduler):
    """Notes every unit when it ends."""

    def __init__(self, device: DeviceSpec) -> None:
        super().__init__(device)
        self.ran: list[Ran] = []
        self._begun: dict[int, tuple[Unit, int, tuple[int, ...]]] = {}

    def step(self, now: int, *, hold: bool = False) -> Step:
        step = super().step(now, hold=hold)
        for unit in step.start:
            self._begun[unit.id] = (unit, now, tuple(row.call.id for row in unit.rows))
        return step

    def finished(self, outcome: Outcome, now: int) -> None:
        unit, begun, calls = self._begun.pop(outcome.unit_id)
        realtime = unit.klass is Klass.REALTIME
        self.ran.append(Ran(unit.worker, begun / MS, now / MS, calls, unit.stage, realtime))
        super().finished(outcome, now)


def run(
    profile: dict[str, Any],
    requests: Sequence[Request],
    workers: Sequence[int] = (8,),
    tick_ms: int = 1000,
    max_batch: int = 32,
    **policy: Any,
) -> list[Ran]:
    """The units of these requests, in the order in which they ended. `policy`: fields of a PolicySpec."""
    model = parse({"model": "drawn", "max_batch": 32, **profile})
    scheduler = Watched(DeviceSpec(tuple(map(WorkerSpec, workers)), max_running=len(workers)))
    node = Node(
        scheduler,
        Program(
            PROGRAM,
            "drawn",
            tuple(Stage(part, part.cell) for part in model.of_stages()),
            PolicySpec(**policy),
            max_batch,
        ),
        SimulatedDevice(model, len(workers)),
    )
    simulator = Simulator([node], Tally(), tick_ns=tick_ms * MS)
    for one in requests:
        simulator.feed([round(one.at_ms * MS)], [one.steps], [one.steps], klass=one.klass)
    simulator.drain()
    return scheduler.ran


def lanes(axes: Axes, ran: Sequence[Ran], text: str = "{rows}", colour: str = "stage") -> None:
    """Units as blocks in the lane of their worker."""
    for one in ran:
        number = one.stage if colour == "stage" else int(not one.realtime)
        axes.broken_barh(
            [(one.begins, one.ends - one.begins)], (one.worker - 0.4, 0.8),
            facecolor=COLOURS[number], edgecolor="white",
        )  # fmt: skip
        label = text.format(rows=len(one.calls), stage=one.stage + 1)
        axes.text((one.begins + one.ends) / 2, one.worker, label, ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks(range(max(one.worker for one in ran) + 1))
    axes.set_xlabel("ms")
    axes.grid(visible=False)


def arrivals(axes: Axes, requests: Sequence[Request], y: float, colours: bool = False) -> None:
    for one in requests:
        dark = "black" if one.klass is Klass.REALTIME else COLOURS[1]
        axes.plot(one.at_ms, y, marker="v", color=dark if colours else "black", markersize=5, clip_on=False)


def ebird(folder: Path) -> None:
    workers = (16, 8, 4, 2, 1, 1)
    times = {str(rows): 4 + 0.6 * rows for rows in (1, 2, 4, 8, 16, 32)}
    profile = {"batch_ms": times, "concurrency": {str(len(workers)): times}}
    requests = [Request(0)] * 27 + [Request(2 + 2.0 * number) for number in range(9)]
    ran = run(profile, requests, workers, name="ebird")
    with saved_grid(folder / "ebird.png", 1, 1, SIZE, layout="constrained") as (_, grid):
        lanes(grid[0, 0], ran)
        arrivals(grid[0, 0], requests, len(workers) - 0.3)
        grid[0, 0].set_yticklabels([f"{rows} row{'s' if rows > 1 else ''}" for rows in workers])


def by_row(path: Path, ran: Sequence[Ran], requests: Sequence[Request], names: Sequence[str], text: str = "") -> None:
    """A lane for each request, with the units that ran its row."""
    with saved_grid(path, 1, 1, SIZE, layout="constrained") as (_, grid):
        axes = grid[0, 0]
        for one in ran:
            for call in one.calls:
                colour = COLOURS[one.stage if text else call - 1]
                block = [(one.begins, one.ends - one.begins)]
                axes.broken_barh(block, (call - 1.4, 0.8), facecolor=colour, edgecolor="white")
                middle = (one.begins + one.ends) / 2, call - 1
                axes.text(
                    *middle, text.format(stage=one.stage + 1), ha="center", va="center", color="white", fontsize=8
                )
        for number, request in enumerate(requests):
            axes.plot(request.at_ms, number, marker=">", color="black", markersize=6, clip_on=False)
        axes.set_yticks(range(len(requests)), names)
        axes.invert_yaxis()
        axes.set_xlabel("ms")
        axes.grid(visible=False)


def late(folder: Path) -> None:
    profile = {"stages": [{"batch_ms": {"1": 1.0, "32": 1.0}, "cell": True}]}
    requests = [Request(0, 12), Request(0, 5), Request(2.5, 3), Request(4.5, 6), Request(6.5, 2), Request(9.5, 4)]
    ran = run(profile, requests, name="late")
    by_row(folder / "late-batching.png", ran, requests, [f"{one.steps} steps" for one in requests])


def adaptive_batching(folder: Path) -> None:
    random = np.random.default_rng(0)
    ends, at, requests = 24_000.0, 0.0, []
    while at < ends:
        at += random.exponential(1000 / (10 + 230 * at / ends))
        requests.append(Request(at))
    profile = {"batch_ms": {"1": 8.8, "32": 95.6}}
    ran = run(profile, requests, (32,), name="preferred", max_delay_ns=20 * MS)
    with saved_grid(folder / "adaptive-batching.png", 2, 1, (8.0, 3.2), sharex=True, layout="constrained") as (_, grid):
        counts, edges = np.histogram([one.at_ms / 1000 for one in requests], bins=np.arange(0, 25))
        grid[0, 0].step(edges[1:], counts, where="pre", color=COLOURS[0])
        grid[0, 0].set_ylabel("requests/s")
        grid[1, 0].plot(
            [one.begins / 1000 for one in ran], [len(one.calls) for one in ran], ".", color=COLOURS[1], markersize=3
        )
        grid[1, 0].set_ylabel("rows a batch")
        grid[1, 0].set_xlabel("s")


def dvabatch(folder: Path) -> None:
    profile = {"stages": [{"batch_ms": {"1": 8.0, "32": 8.0}}] * 4}
    requests = [Request(0), Request(3), Request(5), Request(6)]
    ran = run(profile, requests, name="dva_load", max_delay_ns=0, complete_wait=1.0, max_batch=4)
    names = [f"row {number + 1}" for number in range(len(requests))]
    by_row(folder / "dvabatch.png", ran, requests, names, "stage {stage}")


def reef(folder: Path) -> None:
    profile = {"stages": [{"batch_ms": {"1": 2.0, "32": 64.0}}] * 4}
    bulk = [Request(0, klass=Klass.BEST_EFFORT)] * 3
    requests = [*bulk, Request(5.0), Request(20.5), Request(21.0), Request(31.2)]
    ran = run(profile, requests, (2,), name="no_wait", max_batch=2)
    with saved_grid(folder / "reef.png", 1, 1, (8.0, 1.9), layout="constrained") as (_, grid):
        lanes(grid[0, 0], ran, "{stage}", "class")
        arrivals(grid[0, 0], [one for one in requests if one.klass is Klass.REALTIME], 0.55)
        grid[0, 0].set_yticks([0], ["worker"])


def main(folder: Path = PAPERS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (ebird, late, adaptive_batching, dvabatch, reef):
        draw(folder)


if __name__ == "__main__":
    main()
