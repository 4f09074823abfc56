"""The page that compares the policies over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.policies.live_data import (
    P99_WITHIN,
    PER_ROW_WITHIN,
    Cell,
    Comparison,
    Control,
    Settings,
    Tail,
)
from loadtest.common import markdown
from loadtest.common.markdown import plural

HEADINGS = (
    "model", "of the peak", "rate/s", "policy", "mean", "beyond the lowest", "", "p99", "rows a batch", "units at once",
    "lag", "requests", "seeds", "errors",
)  # fmt: skip
_SIZES = (1, 2, 3, 4, 8, 16, 32)  # of the control's profile that are shown

TEXT = """\
# Policies over HTTP

Poisson arrivals, binary payload, one row per request, {repeats} seeds of {seconds:g} s at each load. Every policy gets
the same arrivals. The policies take turns within each seed, in another order for each seed, with `preferred` always
last. Loads are shares of the server's own peak (99th percentile within {slo_ms:g} ms under `adaptive`). Latencies are
in ms, from the intended instant to the last byte; "lag" is the part of the mean by which the load generator itself was
late. "units at once" is device time over time, {at_once} when the device is full.

Every policy has the same device, {at_once} unit{s} at once with {threads} compute thread{threads_s} each, on {cores}
cores that client and HTTP use as well. The batch times that `adaptive` uses are measured with as many units at once.
{ebird}

{window}

"beyond the lowest" is the mean difference to the policy with the lowest mean over the seeds, with its 95 % interval
(Student's t); "same" means that the interval contains 0. The ratio of the 99th percentiles is given twice. The plain
ratio is `adaptive` over the least of all policies; it is too high, because the best policy was chosen by the same
figures. The 95 % interval is that of the ratio to the truly best policy, from the largest lower end over all policies,
at levels shared between them, to the largest upper end. It is a paired bootstrap: {draws:,} draws of seeds and, within
them, of blocks of {block_s:g} s of requests, the same draw for both policies.

A run ends when its last request has been answered. One more request is sent alone before the next policy's turn, so
that no queue is left. A policy whose mean was above {slo_ms:g} ms at {lost} seeds is given up at that load and compared
at the seeds that it had.
"""

EBIRD = {
    True: "`ebird` has its own list of six workers, of which the engine runs as many at once.\n"
    "The others have {workers}.",
    False: "`ebird` is left out: with {threads} compute thread{threads_s} the engine would run {bound} of its six\n"
    "workers at once. The others have {workers}.",
}

WINDOW = {
    False: "`window` has the delay of {delays} ms that serves the most rows a second.",
    True: "`window` is run with two delays: the one of {delays} ms that serves the most rows a second, and as\n"
    '"least mean" the one with the least mean latency at that load, found by simulation on the measured batch times.\n'
    "If both are the same delay, it is run once.",
}


def texts(cell: Cell) -> list[str]:
    beyond = "lowest" if not cell.beyond_ms else f"{cell.beyond_ms:+.2f} ± {cell.ci95_ms:.2f}"
    return [
        cell.model, f"{cell.share:.0%}", f"{cell.rate:.0f}", cell.policy, f"{cell.mean_ms:.2f}", beyond,
        "same" if cell.same else "", f"{cell.p99_ms:.1f}", f"{cell.batch:.2f}", f"{cell.busy:.2f}",
        f"{cell.lag_ms:.2f}", str(cell.requests), str(cell.seeds), str(cell.errors),
    ]  # fmt: skip


def verdicts(cells: Sequence[Cell], tails: Sequence[Tail]) -> list[str]:
    """For each load: whether `adaptive` has the lowest mean, and how its 99th percentile compares with the best."""
    own = {(cell.model, cell.share): cell for cell in cells if cell.policy == "adaptive"}
    lines = []
    for tail in tails:
        cell = own[tail.model, tail.share]
        mean = "lowest" if not cell.beyond_ms else "the same as the lowest" if cell.same else "NOT the lowest"
        best = "its own" if tail.best == "adaptive" else f"`{tail.best}`"
        lines.append(
            f"- {tail.model}, {tail.share:.0%}: `adaptive` has the mean {mean}; its p99 is {tail.ratio:.2f} x the best "
            f"({best}), {'within' if tail.within else 'NOT within'} {P99_WITHIN}; interval {tail.low:.2f} to "
            f"{tail.high:.2f}: {verdict(tail.low, tail.high, P99_WITHIN)}"
        )
    return lines


def control_text(found: Control) -> str:
    sizes = ", ".join(f"{size}: {found.profiled_ms[size]:.2f}" for size in _SIZES if size in found.profiled_ms)
    return (
        f"Control: `{found.model}`, a convolutional network for which batches gain nothing (profiled ms a row by batch "
        f"size: {sizes}), one unit at once, at 30 % of the peak of a server that runs single rows ({found.rate:.0f} of "
        f"{found.peak:.0f}/s). A row takes {found.adaptive_ms:.3f} ms of the device under `adaptive`, in "
        f"{found.batch:.2f} rows a batch, and {found.single_ms:.3f} ms in batches of one: x {found.ratio:.3f}, "
        f"{'within' if found.within else 'NOT within'} {PER_ROW_WITHIN}; interval over seeds {found.low:.3f} to "
        f"{found.high:.3f}: {verdict(found.low, found.high, PER_ROW_WITHIN)}. "
        f"By the profile, for the sizes that ran: x {found.mixed:.3f}."
    )


def verdict(low: float, high: float, limit: float) -> str:
    """Whether an interval lies below a limit, above it, or around it."""
    if high <= limit:
        return f"within {limit}"
    return f"NOT within {limit}" if low > limit else f"not distinguishable from {limit}"


def words(settings: Settings) -> str:
    """The text above the table."""
    values = {
        **asdict(settings), "s": plural(settings.at_once), "threads_s": plural(settings.threads),
        "workers": f"{settings.at_once} of 32 rows", "delays": ", ".join(f"{delay:g}" for delay in settings.delays_ms),
    }  # fmt: skip
    ebird = EBIRD[settings.at_once == settings.bound].format(**values)
    return TEXT.format(**values, ebird=ebird, window=WINDOW[settings.least_mean].format(**values))


def name_of(settings: Settings) -> str:
    """The name of page and JSON, with the number of units if fewer run at once than would fit."""
    return "policies-live" if settings.at_once == settings.bound else f"policies-live-{settings.at_once}"


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    found = Comparison.from_dict(data)
    peaks = ", ".join(f"`{model}` {rate:.0f}/s" for model, rate in found.peaks.items())
    parts = [
        words(found.settings), f"Peaks: {peaks}.", markdown.table(HEADINGS, map(texts, found.cells)),
        "\n".join(verdicts(found.cells, found.tails)),
    ]  # fmt: skip
    if found.control is not None:
        parts.append(control_text(found.control))
    path = folder / f"{name_of(found.settings)}.md"
    return [markdown.write([*parts, markdown.facts_list(found.facts)], path)]
