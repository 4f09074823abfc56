"""The page of the soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, ms, table
from loadtest.soak.memory import Trend, trend

Figures = Mapping[str, Any]

MEMORY = """\
Resident memory of the steady server, read twice a second; the first {settle:.0f} s are left out, until caches are full.
A line through the averages of 20 equal stretches rises by **{per_hour:+.2f} MiB an hour** (95 % confidence: {low:+.2f}
to {high:+.2f}), {grown:+.2f} MiB over the time measured; single readings lie {noise:.2f} MiB about it (standard
deviation). Flat means that the interval holds 0 or lies below it, or that the line rises by less than twice those
{noise:.2f} MiB. Verdict: **{verdict}**.
"""
TOO_SHORT = "Too short to say whether memory grows."
WORDS = {
    "leave": "clients that send a request and leave",
    "leave early": "clients that leave in the middle of a request",
    "bad row": "a row that fails in the model: 500, and the rows batched with it are answered",
    "bad shape": "a wrong shape: 400",
    "bad JSON": "broken JSON: 400",
    "no model": "an unknown model: 404",
    "reload": "the model loaded again",
}


def trend_of(data: Figures) -> Trend | None:
    return trend(data["memory"]["at_s"], data["memory"]["mib"], data["settings"]["settle_s"])


def missed(data: Data) -> list[str]:
    """What a soak must not show."""
    found = []
    for name in ("load", "beside"):
        load = data[name]
        lost = load["requests"] - load["completed"]
        if lost:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in load["errors"].items())
            found.append(f"{name}: {lost} of {load['requests']} requests without a right answer: {kinds}")
    found += [f"{count} x {what}" for what, count in data["faults"]["wrong"].items()]
    found += [f"a replica ended with {one['exit']}" for one in data["replacements"] if one["exit"] != 0]
    if data["exit"] != 0:
        found.append(f"the steady server ended with {data['exit']}")
    found += [f"{name} is {value:g} when all is answered" for name, value in data["left"].items() if value]
    line = trend_of(data)
    if line is not None and not line.flat:
        found.append(f"memory grows by {line.per_hour:.2f} MiB an hour ({line.low:.2f} to {line.high:.2f})")
    return found


def draw(data: Data, folder: Path) -> None:
    """Memory and latency over time."""
    memory, line = data["memory"], trend_of(data)
    from loadtest.common import plots

    with plots.saved_grid(folder / "soak.png", 2, 1, (9, 6), sharex=True) as (figure, grid):
        upper, lower = grid[0, 0], grid[1, 0]
        upper.plot(memory["at_s"], memory["mib"], color="C0", linewidth=1)
        if line is not None:
            ends = [data["settings"]["settle_s"], memory["at_s"][-1]]
            upper.plot(ends, [line.first, line.last], color="k", linestyle="--", linewidth=1)
        upper.set_ylabel("resident memory, MiB")
        stretches = data["load"]["stretches"]
        for name, colour in (("p50", "C2"), ("p99", "C1"), ("max", "0.6")):
            lower.plot([one["at_s"] for one in stretches], [one[name] for one in stretches], color=colour, label=name)
        lower.set_yscale("log")
        plots.plain_numbers(lower.yaxis)
        lower.set_ylabel("latency, ms")
        lower.set_xlabel("seconds")
        lower.legend(loc="upper right", ncols=3, fontsize=10)
        figure.tight_layout()


def faults(data: Figures) -> str:
    wrong, ends = data["faults"]["wrong"], data["replacements"]
    rows = [
        (WORDS[kind], count, sum(many for what, many in wrong.items() if what.startswith(f"{kind}:")))
        for kind, count in data["faults"]["sent"].items()
    ]
    rows.append(("the replica told to end and replaced", len(ends), sum(one["exit"] != 0 for one in ends)))
    columns: dict[str, Column] = {
        "fault": lambda row: row[0],
        "how many": lambda row: f"{row[1]:,}",
        "not answered as they must be": lambda row: row[2],
    }
    return table(columns, rows)


def loads(data: Figures) -> str:
    def over(figure: str, of: Any) -> Column:
        return lambda load: ms(of(one[figure] for one in load["stretches"]))

    columns: dict[str, Column] = {
        "load": "{name}",
        "requests": "{requests:,}",
        "without a right answer": lambda load: f"{load['requests'] - load['completed']:,}",
        "50 %, ms": over("p50", median),
        "99 %, ms": over("p99", median),
        "longest, ms": over("max", max),
    }
    rows = ({"name": "the steady server", **data["load"]}, {"name": "the replicas", **data["beside"]})
    return table(columns, rows)


def memory_text(data: Figures) -> str:
    line = trend_of(data)
    if line is None:
        return TOO_SHORT
    return MEMORY.format(
        per_hour=line.per_hour, low=line.low, high=line.high, grown=line.grown, noise=line.noise,
        settle=data["settings"]["settle_s"], verdict="flat" if line.flat else "it grows",
    )  # fmt: skip


def fill(data: Data) -> Mapping[str, object]:
    settings, memory, reloads = data["settings"], data["memory"], data["faults"]["reloads_s"]
    wrong = missed(data)
    searched = (
        f"the {data['peak']:,.0f} requests/s up to which `starling bench --find-peak` keeps 99 % below "
        f"{settings['slo_ms']:g} ms"
    )
    return {
        "origin": "a given peak" if settings["given"] else searched,
        "missed": f"**Missed**: {'; '.join(wrong)}." if wrong else "Nothing was lost.",
        "loads": loads(data),
        "faults_table": faults(data),
        "reload_s": median(reloads),
        "reload_most_s": max(reloads),
        "ended_s": max((one["ended_s"] for one in data["replacements"]), default=0.0),
        "waiting": sum(data["left"].values()),
        "memory_text": memory_text(data),
        "threads_after": memory["threads"][-1],
        "files_after": memory["descriptors"][-1],
        "most_files": max(memory["descriptors"]),
    }


PAGE = Page("soak", __file__, fill, missed, draw)
