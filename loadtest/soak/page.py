"""The page of the soak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown, plots
from loadtest.common.markdown import ms, table
from loadtest.soak.memory import Trend, trend

Figures = Mapping[str, Any]

HEAD = """\
# Soak

`make soak`: {seconds:g} s of open-loop load on one server, Poisson arrivals at {rate:,.0f} requests/s. That is
{share:.0%} of {origin}.
Meanwhile there are faults, on a schedule that the seed {seed} fixes. The model is two small dense layers that fail on
marked rows. Every answer of the load is compared with the first one to the same request. Beside it a replica of the
same model takes {beside:g} requests/s. It is told to end by SIGTERM in the midst of them, still gets some for a part of
its {grace:g} s of grace, and is replaced. Before all that the model was loaded again {rehearsed} times, and each other
fault done ten times as often: what a process keeps of the first ones is not growth.
"""
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


def missed(data: Figures) -> list[str]:
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


def draw(data: Figures, path: Path) -> None:
    """Memory and latency over time."""
    memory, line = data["memory"], trend_of(data)
    with plots.saved_grid(path, 2, 1, (9, 6), sharex=True) as (figure, grid):
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
    wrong = data["faults"]["wrong"]
    rows = [
        [WORDS[kind], f"{count:,}", str(sum(many for what, many in wrong.items() if what.startswith(f"{kind}:")))]
        for kind, count in data["faults"]["sent"].items()
    ]
    rows.append(
        ["the replica told to end and replaced", str(len(data["replacements"])),
         str(sum(one["exit"] != 0 for one in data["replacements"]))]
    )  # fmt: skip
    return table(["fault", "how many", "not answered as they must be"], rows)


def load_row(name: str, load: Figures) -> list[str]:
    of = {share: [one[share] for one in load["stretches"]] for share in ("p50", "p99", "max")}
    return [
        name, f"{load['requests']:,}", f"{load['requests'] - load['completed']:,}",
        ms(median(of["p50"])), ms(median(of["p99"])), ms(max(of["max"])),
    ]  # fmt: skip


def write(data: Figures, folder: Path) -> list[str]:
    settings, line, wrong = data["settings"], trend_of(data), missed(data)
    origin = "a given peak" if settings["given"] else (
        f"the {data['peak']:,.0f} requests/s up to which `starling bench --find-peak` keeps 99 % below "
        f"{settings['slo_ms']:g} ms"
    )  # fmt: skip
    memory = data["memory"]
    told = TOO_SHORT if line is None else MEMORY.format(
        per_hour=line.per_hour, low=line.low, high=line.high, grown=line.grown, noise=line.noise,
        settle=settings["settle_s"], verdict="flat" if line.flat else "it grows",
    )  # fmt: skip
    reloads = data["faults"]["reloads_s"]
    ends = [one["ended_s"] for one in data["replacements"]]
    parts = [
        HEAD.format(**settings, rate=data["rate"], origin=origin),
        "Nothing was lost." if not wrong else f"**Missed**: {'; '.join(wrong)}.",
        table(
            ["load", "requests", "without a right answer", "50 %, ms", "99 %, ms", "longest, ms"],
            [load_row("the steady server", data["load"]), load_row("the replicas", data["beside"])],
        ),
        "The percentiles are medians over stretches of load; the longest is that of all.",
        "## Faults", faults(data),
        f"A reload took {median(reloads):.2f} s in the median, {max(reloads):.2f} s at most; a replica ended "
        f"{max(ends, default=0.0):.1f} s after its SIGTERM at the latest. When all had been answered, "
        f"{sum(data['left'].values()):g} rows waited or held a slot.",
        "## Memory", "![memory and latency over time](soak.png)", told,
        f"Threads: {memory['threads'][0]:g} at the start, {memory['threads'][-1]:g} at the end; open files: "
        f"{memory['descriptors'][0]:g} and {memory['descriptors'][-1]:g}, at most {max(memory['descriptors']):g}.",
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    draw(data, folder / "soak.png")
    return [markdown.write(parts, folder / "soak.md"), "soak.png"]
