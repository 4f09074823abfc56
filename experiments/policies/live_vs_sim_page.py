"""The page of one model live and simulated: a table with a row for each load, and a plot of both distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from loadtest.common import markdown

WITHIN = 0.15  # of the live mean
CONTROL_WITHIN = 0.03  # of a device whose speed does not drift


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
    handover_ms: NotRequired[float | None]  # runs from before it was measured have none
    profiled_handover_ms: NotRequired[float]


class Curve(TypedDict):
    """Quantiles of one load, from 1 to 99 %."""

    share: float
    live_ms: list[float]
    simulated_ms: list[float]


class Compared(TypedDict):
    """One model."""

    settings: dict[str, Any]
    peak: float
    rows: list[Row]
    curves: list[Curve]


class LiveAndSimulated(Compared):
    facts: dict[str, str]
    control: NotRequired[Compared]
    drift_ms: NotRequired[list[float]]


TEXT = """\
# Simulated against live

`{model}` live and simulated under the same arrivals: {repeats} seeds of {seconds:g} s each, at {shares} of the
server's own peak, {peak:.0f} requests/s (99th percentile within {slo_ms:g} ms). The simulator knows only what
`starling profile` measured just before each load: batch times, and what a batch costs beyond them to be handed to a
worker and back. Means in ms. "live" is the time from when a request has been read until the event loop hears of its
batch's end (Server-Timing, queue and compute). "HTTP" is the rest of the client's latency: parsing, encoding, both
event loops.
Batches that run now and then, beside a busy event loop, take longer than batches run back to back: "with the live run's
batch times" simulates again with the profile times that factor, and shows how much the scheduler itself is off. "Batch
time" is a mean over requests, of the batch that each was in. "Hand-over" is live what the server had learnt by the end
of the run. "Others" are processes with no part in the run.
"""

DRIFT = """\
On this machine one row of `mlp`, run back to back with nothing else running, took between {least:.2f} and {most:.2f} ms
from one second to another (`python -m experiments.policies.drift`, {seconds} seconds). A slower device at the same rate
has a higher load, and queues grow faster than batch times, above all when slow and fast seconds alternate.
"""

CONTROL = """\
## A device whose speed does not drift

The same with a model that sleeps {sleeps} and needs no processor, at {shares} of a peak of {peak:.0f} requests/s:
{repeats} seeds of {seconds:g} s each. What is left of the difference is not the model's. It should be within
{within:.0%}; of {loads} loads {kept} {are}.
"""

SLEEPS = "4 + 0.65 ms a row"  # loadtest/bench/models/sleep

HEADINGS = (
    "of the peak", "rate/s", "requests", "client", "HTTP", "live", "simulated", "off", "within {within:.0%}",
    "with the live run's batch times",
    "p99, live / sim", "rows a batch, live / sim", "batch time, live / sim", "hand-over, live / sim", "others, cores",
)  # fmt: skip


def off(row: Row) -> float:
    """Simulated over live mean latency, less one."""
    return row["simulated_ms"] / row["server_ms"] - 1


def cells(row: Row, within: float = WITHIN) -> list[str]:
    drifted, handover = row["drifted_ms"], row.get("handover_ms")
    return [
        f"{row['share']:.0%}", f"{row['rate']:.0f}", f"{row['requests']}", f"{row['client_ms']:.2f}",
        f"{row['client_ms'] - row['server_ms']:.2f}", f"{row['server_ms']:.2f}", f"{row['simulated_ms']:.2f}",
        f"{off(row):+.1%}", "yes" if abs(off(row)) <= within else "NO",
        f"x {row['drift']:.2f}: {drifted:.2f} ({drifted / row['server_ms'] - 1:+.1%})",
        f"{row['server_p99_ms']:.1f} / {row['simulated_p99_ms']:.1f}",
        f"{row['batch']:.2f} / {row['simulated_batch']:.2f}",
        f"{row['compute_ms']:.2f} / {row['profiled_ms']:.2f}",
        "" if handover is None else f"{handover:.3f} / {row.get('profiled_handover_ms', 0.0):.3f}",
        "" if row["others"] is None else f"{row['others']:.2f}",
    ]  # fmt: skip


def missed(data: Mapping[str, Any]) -> list[str]:
    """The loads at which simulated and live differ too much."""
    control = data["control"]["rows"] if "control" in data else []
    judged = [("", WITHIN, row) for row in data["rows"]] + [("control, ", CONTROL_WITHIN, row) for row in control]
    return [
        f"{name}{row['share']:.0%} of the peak: {off(row):+.1%}" for name, most, row in judged if abs(off(row)) > most
    ]


def table(rows: Sequence[Row], within: float) -> str:
    return markdown.table([name.format(within=within) for name in HEADINGS], [cells(row, within) for row in rows])


def shares(rows: Sequence[Row]) -> str:
    return " and ".join(f"{row['share']:.0%}" for row in rows)


def control_of(found: Compared) -> list[str]:
    """The section of the model that sleeps."""
    rows = found["rows"]
    kept = sum(abs(off(row)) <= CONTROL_WITHIN for row in rows)
    text = CONTROL.format(
        **found["settings"], peak=found["peak"], shares=shares(rows), sleeps=SLEEPS, within=CONTROL_WITHIN,
        loads=len(rows), kept=kept, are="is" if kept == 1 else "are",
    )  # fmt: skip
    return [text, table(rows, CONTROL_WITHIN)]


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
    parts = [TEXT.format(**data["settings"], peak=data["peak"], shares=shares(data["rows"]))]
    if seconds := data.get("drift_ms"):
        parts.append(DRIFT.format(least=min(seconds), most=max(seconds), seconds=len(seconds)))
    parts += [table(data["rows"], WITHIN), "![Latency in the server, live and simulated](live-vs-sim.png)"]
    if "control" in data:
        parts += control_of(data["control"])
    parts.append(markdown.facts_list(data["facts"]))
    return ["live-vs-sim.png", markdown.write(parts, folder / "live-vs-sim.md")]
