"""The page of the policies over HTTP: its words, tables and verdicts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from .policies_live_figures import BLOCK_S, DRAWS, P99_WITHIN, PER_ROW_WITHIN, Cell, Control, Tail, verdict
from .simulation.section import row

HEADINGS = (
    "model", "of the peak", "rate/s", "policy", "mean", "beyond the lowest", "", "p99", "rows a batch", "units at once",
    "lag", "requests", "seeds", "errors",
)  # fmt: skip
_SIZES = (1, 2, 3, 4, 8, 16, 32)  # of the control's profile that are shown

TEXT = """\
# Policies over HTTP

{repeats} seeds of {seconds:g} s at each load, Poisson arrivals, binary payload, one row a request; every policy gets
the same instants, in alternation: the order changes from seed to seed, `preferred` comes last in each. Loads are
shares of the server's own peak (99th percentile within {slo:g} ms under `adaptive`). Latencies in ms, from the intended
instant to the last byte; "lag" is how much of the mean the load generator itself was late. "units at once" is device
time over time: the load of the device, {at_once} when full.

Device: every policy has the same one, {at_once} unit{s} at once with {threads} compute thread{threads_s} each, on
{cores} cores that client and HTTP use, too. The batch times that `adaptive` goes by are measured with as many at once.
{ebird}

"beyond the lowest" is the mean over seeds of the difference to the policy with the lowest mean, with its 95 % interval
(Student's t); "same" where the interval holds 0. The ratio of the 99th percentiles is first the plain one, `adaptive`
over the least of all. Then its 95 % interval, a paired bootstrap: {draws} draws of seeds and, within them, of blocks of
{block:g} s of requests, the same draw for both policies. Which policy is best was seen in the same figures, which makes
the plain ratio too high; the interval is of the ratio to the truly best: from the largest of the lower ends over all
policies, at levels shared between them, to the largest of the upper ends.

A run ends when its last request has been answered, and one more goes through alone before the next policy's turn, so
that no backlog is left. A policy whose mean was beyond {slo:g} ms at {lost} seeds gets no more at that load: it is
compared at the seeds that it had.
"""

EBIRD = {
    True: "`ebird` has its own list of six workers, of which the engine runs no more at once; the others have\n"
    "{workers}.",
    False: "`ebird` is left out: with {threads} compute thread{threads_s} the engine runs {bound} of its six workers\n"
    "at once. The others have {workers}.",
}


@dataclass
class Found:
    """All that was measured. `peaks` in requests/s by model."""

    peaks: dict[str, float] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    control: Control | None = None

    @property
    def missed(self) -> bool:
        """A target is missed, going by the figures themselves and, of the means, by their interval."""
        slower = any(cell.policy == "adaptive" and not cell.same for cell in self.cells)
        near = all(tail.within for tail in self.tails)
        return slower or not near or (self.control is not None and not self.control.within)


def texts(cell: Cell) -> list[str]:
    beyond = "lowest" if not cell.beyond_ms else f"{cell.beyond_ms:+.2f} ± {cell.ci95_ms:.2f}"
    return [
        cell.model, f"{cell.share:.0%}", f"{cell.rate:.0f}", cell.policy, f"{cell.mean_ms:.2f}", beyond,
        "same" if cell.same else "", f"{cell.p99_ms:.1f}", f"{cell.batch:.2f}", f"{cell.busy:.2f}",
        f"{cell.lag_ms:.2f}", str(cell.requests), str(cell.seeds), str(cell.errors),
    ]  # fmt: skip


def verdicts(cells: Sequence[Cell], tails: Sequence[Tail]) -> list[str]:
    """Whether `adaptive` is lowest, or the same as the lowest, and its 99th percentile near the best, load by load."""
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


def words(chosen: argparse.Namespace, slo_ms: float, lost: int) -> str:
    """The text above the table. `chosen` as the command has it."""
    values = {
        **vars(chosen), "slo": slo_ms, "lost": lost, "draws": f"{DRAWS:,}", "block": BLOCK_S,
        "s": "s" * (chosen.at_once > 1), "threads_s": "s" * (chosen.threads > 1),
        "workers": f"{chosen.at_once} of 32 rows",
    }  # fmt: skip
    return TEXT.format(**values, ebird=EBIRD[chosen.at_once == chosen.bound].format(**values))


def write(found: Found, chosen: argparse.Namespace, words: str, facts: Mapping[str, str]) -> None:
    """`policies-live.json` and `.md` into `chosen.out`; `policies-live-N` for N units at once where more would fit."""
    name = "policies-live" if chosen.at_once == chosen.bound else f"policies-live-{chosen.at_once}"
    chosen.out.mkdir(parents=True, exist_ok=True)
    data = {**facts, "at_once": chosen.at_once, "threads": chosen.threads, **asdict(found)}
    (chosen.out / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [words, f"Peaks: {', '.join(f'`{model}` {rate:.0f}/s' for model, rate in found.peaks.items())}.", ""]
    lines += [row(HEADINGS), row(["---"] * len(HEADINGS)), *(row(texts(cell)) for cell in found.cells), ""]
    lines += verdicts(found.cells, found.tails)
    if found.control is not None:
        lines += ["", control_text(found.control)]
    lines += ["", *(f"- {fact}: {value}" for fact, value in facts.items()), ""]
    (chosen.out / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")
