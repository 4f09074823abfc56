"""The page of one model live and simulated: a table with a row for each load, and a plot of both distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from loadtest.common import markdown

WITHIN = 0.15  # of the live mean


class Row(TypedDict):
    """One load, live and simulated; times in ms."""

    share: float  # of the peak
    rate: float
    requests: int
    client_ms: float
    server_ms: float
    simulated_ms: float
    server_p99_ms: float
    simulated_p99_ms: float
    batch: float
    simulated_batch: float
    compute_ms: float
    profiled_ms: float
    drift: float  # batch times of the live run over those of the profile, at the sizes that ran
    drifted_ms: float  # simulated with the profile times that
    others: float | None  # cores that other processes used meanwhile; None where the platform does not tell


class Curve(TypedDict):
    """Quantiles of one load, from 1 to 99 %."""

    share: float
    live_ms: list[float]
    simulated_ms: list[float]


class LiveAndSimulated(TypedDict):
    facts: dict[str, str]
    settings: dict[str, Any]
    peak: float
    rows: list[Row]
    curves: list[Curve]


TEXT = """\
# Simulated against live

`{model}` live and simulated under the same arrivals: {repeats} seeds of {seconds:g} s each, at {shares} of the
server's own peak, {peak:.0f} requests/s (99th percentile within {slo_ms:g} ms). The simulator knows only the batch
times that `starling profile` measured just before each load. Means in ms. "live" is the time from arrival to the end
of the batch (Server-Timing, queue and compute). "HTTP" is the rest of the client's latency: parsing, encoding, both
event loops and handing batches between threads. Batches that run now and then, beside a busy event loop, take longer
than batches run back to back: "with the live run's batch times" simulates again with the profile times that factor, and
shows how much the scheduler itself is off. "Batch time" is a mean over requests, of the batch that each was in.
"Others" are processes with no part in the run.

Most of the difference is probably the machine itself; this was not proven for each row. On the two virtual cores of the
committed figures one row of `mlp`, run back to back with nothing else running, takes between 4.5 and 6.0 ms from one
second to another (`python -m loadtest.bench.drift`). A slower device at the same rate has a higher load, and queues
grow faster than batch times, above all when slow and fast seconds alternate. As a control, a model that sleeps 4 + 0.65
ms a row and needs no processor was run in the same way (`python -m loadtest.bench.live_vs_sim --model sleep --models
loadtest/bench/models --seconds 5 --budget 6 --out out`): 8.86 ms simulated against 9.32 ms live at 30 % (-5.0 %), 12.52
against 13.62 ms at 60 % (-8.0 %). The rest there is the time to hand each batch to another thread and back, 0.6 to 0.75
ms for `mlp` (`starling_worker_busy_seconds_total` less `starling_compute_duration_seconds`, per batch), which the
profile leaves out.
"""

HEADINGS = (
    "of the peak", "rate/s", "requests", "client", "HTTP", "live", "simulated", "off", "within 15 %",
    "with the live run's batch times",
    "p99, live / sim", "rows a batch, live / sim", "batch time, live / sim", "others, cores",
)  # fmt: skip


def off(row: Row) -> float:
    """Simulated over live mean latency, less one."""
    return row["simulated_ms"] / row["server_ms"] - 1


def cells(row: Row) -> list[str]:
    drifted = row["drifted_ms"]
    return [
        f"{row['share']:.0%}", f"{row['rate']:.0f}", f"{row['requests']}", f"{row['client_ms']:.2f}",
        f"{row['client_ms'] - row['server_ms']:.2f}", f"{row['server_ms']:.2f}", f"{row['simulated_ms']:.2f}",
        f"{off(row):+.1%}", "yes" if abs(off(row)) <= WITHIN else "NO",
        f"x {row['drift']:.2f}: {drifted:.2f} ({drifted / row['server_ms'] - 1:+.1%})",
        f"{row['server_p99_ms']:.1f} / {row['simulated_p99_ms']:.1f}",
        f"{row['batch']:.2f} / {row['simulated_batch']:.2f}",
        f"{row['compute_ms']:.2f} / {row['profiled_ms']:.2f}",
        "" if row["others"] is None else f"{row['others']:.2f}",
    ]  # fmt: skip


def missed(data: Mapping[str, Any]) -> list[str]:
    """The loads at which simulated and live differ too much."""
    return [f"{row['share']:.0%} of the peak: {off(row):+.1%}" for row in data["rows"] if abs(off(row)) > WITHIN]


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Plot quantiles live and simulated, with a colour for each load."""
    from loadtest.common.plots import saved

    with saved(path) as axes:
        for colour, curve in enumerate(curves):
            shares = range(1, len(curve["live_ms"]) + 1)
            axes.plot(curve["live_ms"], shares, f"C{colour}-", label=f"{curve['share']:.0%} of the peak, live")
            axes.plot(curve["simulated_ms"], shares, f"C{colour}--", label=f"{curve['share']:.0%}, simulated")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 100)
        axes.set_xlabel("latency in the server, ms")
        axes.set_ylabel("requests answered within it, %")
        axes.legend(loc="lower right")


def write(data: LiveAndSimulated, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    draw(data["curves"], folder / "live-vs-sim.png")
    shares = " and ".join(f"{row['share']:.0%}" for row in data["rows"])
    parts = [
        TEXT.format(**data["settings"], peak=data["peak"], shares=shares),
        markdown.table(HEADINGS, map(cells, data["rows"])),
        "![Latency in the server, live and simulated](live-vs-sim.png)",
        markdown.facts_list(data["facts"]),
    ]
    return ["live-vs-sim.png", markdown.write(parts, folder / "live-vs-sim.md")]
