"""The page of DVABatch's and Late Batching's experiments: published figures beside ours, and the assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtest.common.page import Column, Data, Page, grid, joined, lines_table, ms, table

#: One network: the times of its loads by system and load, its peaks, and what else was tried of it.
Study = Mapping[str, Any]

BASES = ("ZeroBatch", "DelayBatch")
#: Published reductions of the mean and of the 99 % latency, in percent, at low, medium and high load.
PUBLISHED = {
    ("ZeroBatch", "mean_ms"): (16.1, 39.0, 57.7), ("DelayBatch", "mean_ms"): (35.4, 47.3, 48.5),
    ("ZeroBatch", "p99_ms"): (16.9, 27.4, 53.7), ("DelayBatch", "p99_ms"): (45.2, 45.1, 29.2),
}  # fmt: skip
PEAKS = {"BertBase": "+46.8 %", "BertLarge": "1.37 x"}
SEQUENCES = {"fixed 20": "about the same", "WMT-like": "+25 to 33 %"}


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def slashed(shares: Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f} %" for share in shares)


def named(found: Study) -> str:
    return str(found["network"]["name"])


def reduction(found: Study, name: str, base: str, load: str, figure: str = "mean_ms") -> float:
    """By which share a figure of `name` is below that of `base`."""
    return float(1 - found["loads"][name][load][figure] / found["loads"][base][load][figure])


def gain(studies: Sequence[Study], name: str, base: str, loads: Sequence[str]) -> float:
    """The mean reduction of the mean latency over the networks that have both, and these loads."""
    known = [found for found in studies if name in found["loads"]]
    return fmean(reduction(found, name, base, load) for found in known for load in loads)


def over_delay(found: Study, name: str, figure: str = "peaks") -> str:
    return percent(found[figure][name] / found[figure]["DelayBatch"] - 1)


def claims(studies: Sequence[Study], loads: Sequence[str]) -> str:
    """Each figure of the paper beside ours."""
    of = {named(found): found for found in studies}
    same = [
        found["peaks"]["DVABatch"] / found["peaks"]["DelayBatch"] - 1 for name, found in of.items() if name not in PEAKS
    ]

    def lower(base: str) -> str:
        return " / ".join(percent(-gain(studies, "DVABatch", base, [load])) for load in loads)

    def best(key: str) -> str:
        times = {name: found[key] for name, found in of.items() if key in found}
        return ", ".join(f"{name} {min(one, key=lambda count: one[count])}" for name, one in times.items())

    rows = [
        ["mean latency, all networks, loads and both baselines", "-46.4 %",
         percent(-fmean(gain(studies, "DVABatch", base, loads) for base in BASES))],
        ["mean latency, against ZeroBatch", "-16.1 / -39.0 / -57.7 %", lower("ZeroBatch")],
        ["mean latency, against DelayBatch", "-35.4 / -47.3 / -48.5 %", lower("DelayBatch")],
        *([f"peak, {name}", PEAKS[name], over_delay(of[name], "DVABatch")] for name in PEAKS if name in of),
        ["peak, the others", "the same", f"{percent(min(same))} to {percent(max(same))}"],
        ["split alone, high load, against DelayBatch (Unet, LinkNet)", "-15.0 %",
         percent(-gain(studies, "split alone", "DelayBatch", ["high"]))],
        ["best number of buffer pairs", "2 for all", best("pairs")],
        ["best number of stages", "BertBase 2, LinkNet 4, ResNet152 4", best("stages")],
    ]  # fmt: skip
    return lines_table(("", "published", "simulated"), rows)


def overall(studies: Sequence[Study], loads: Sequence[str]) -> str:
    def ours(name: str, base: str, figure: str) -> str:
        return slashed([fmean(reduction(found, name, base, load, figure) for found in studies) for load in loads])

    rows = [
        [f"{'mean' if figure == 'mean_ms' else '99 %'}, {name} below {base}",
         " / ".join(f"{value:g} %" for value in published), ours(name, base, figure)]
        for (base, figure), published in PUBLISHED.items()
        for name in ("DVABatch", "DVABatch, one at a time", "no_wait", "adaptive")
    ]  # fmt: skip
    return lines_table(("over six networks, at low / medium / high load", "published", "simulated"), rows)


def latencies(studies: Sequence[Study], loads: Sequence[str]) -> str:
    columns: dict[str, Column] = {
        "network": "{network}",
        "system": lambda row: f"{row['name']} ({row['delay_ms']:g} ms)" if row["name"] == "DelayBatch" else row["name"],
        **{f"{load}: mean / 99 %, ms": f"{{{load}[mean_ms]:ms}} / {{{load}[p99_ms]:ms}}" for load in loads},
        "peak, rows/s": lambda row: f"{row['peaks'][row['name']]:.0f}" if row["name"] in row["peaks"] else "",
    }
    rows = (
        {**runs, "network": named(found), "name": name, "delay_ms": found["delay_ms"], "peaks": found["peaks"]}
        for found in studies
        for name, runs in found["loads"].items()
    )
    return table(columns, rows)


PEAK_COLUMNS: dict[str, Column] = {
    "peak against DelayBatch": named,
    "published": lambda found: PEAKS.get(named(found), "the same"),
    "DVABatch": lambda found: over_delay(found, "DVABatch"),
    "adaptive": lambda found: over_delay(found, "adaptive"),
    "stepping: DelayBatch": "{stepping[DelayBatch]:.0f}",
    "stepping: DVABatch": "{stepping[DVABatch]:.0f}",
    "stepping: adaptive": "{stepping[adaptive]:.0f}",
}


def counts(studies: Sequence[Study], key: str, title: str) -> str:
    """Mean latencies by the number of buffer pairs or of stages."""
    times = {named(found): found[key] for found in studies if key in found}
    numbers = {number: number for number in next(iter(times.values()), ())}
    return grid(title, times, numbers, lambda network, number: ms(times[network][number]))


def waits(studies: Sequence[Study], loads: Sequence[str]) -> str:
    """What each T_comp_wait would make of the mean latencies. The Berts, which stretch nothing, keep theirs."""

    def mean_ms(found: Study, wait: str, load: str) -> float:
        return float(found["waits"][wait][load] if "waits" in found else found["loads"]["DVABatch"][load]["mean_ms"])

    def below(wait: str, base: str) -> list[float]:
        return [
            fmean(1 - mean_ms(found, wait, load) / found["loads"][base][load]["mean_ms"] for found in studies)
            for load in loads
        ]

    columns: dict[str, Column] = {
        "T_comp_wait / T(1)": lambda wait: wait,
        "mean latency, all": lambda wait: percent(-fmean(one for base in BASES for one in below(wait, base))),
        "below ZeroBatch, low / medium / high": lambda wait: slashed(below(wait, "ZeroBatch")),
        "below DelayBatch": lambda wait: slashed(below(wait, "DelayBatch")),
    }
    return table(columns, next(found["waits"] for found in studies if "waits" in found))


def case3(found: Sequence[Mapping[str, Any]]) -> str:
    times = {(f"{one['complete_wait']:g}", one["one_step"]): one["mean_t"] for one in found}
    ways = {True: "one step for an end and an arrival", False: "a step for each"}
    return grid(
        "T_comp_wait / T(1)",
        dict.fromkeys(wait for wait, _ in times),
        ways,
        lambda wait, way: f"{times[wait, way]:g} T",
    )


def doubted(doubts: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    reductions = {one["doubt"]: one["reductions"] for one in doubts}

    def cell(doubt: str, load: str) -> str:
        found = [100 * one for one in reductions[doubt][load]]
        return f"{fmean(found):.1f} % ({min(found):.1f} to {max(found):.1f})"

    headings = dict(zip(loads, loads, strict=True))
    return grid("mean latency of DVABatch below ZeroBatch", reductions, headings, cell)


def throughput(datasets: Sequence[Mapping[str, Any]]) -> str:
    def over(policy: str) -> Column:
        return lambda found: percent(found["most"][policy] / found["most"]["buckets"] - 1)

    columns: dict[str, Column] = {
        "sequences/s at most": "{dataset}",
        "buckets": "{most[buckets]:,.0f} (width {width})",
        "`late`": "{most[late]:,.0f}",
        "`late` over buckets": over("late"),
        "`adaptive`": "{most[adaptive]:,.0f}",
        "`adaptive` over buckets": over("adaptive"),
        "published": lambda found: SEQUENCES[found["dataset"]],
    }
    return table(columns, datasets)


def cells(found: Mapping[str, Any]) -> str:
    columns: dict[str, Column] = {"load": lambda row: f"{float(row[0]):.2f}"}

    def over(figure: str) -> Column:
        return lambda row: percent(row[1]["late"][figure] / row[1]["buckets"][figure] - 1)

    def time(system: str, figure: str) -> Column:
        return lambda row: ms(row[1][system][figure])

    for name, figure in (("p50", "p50_ms"), ("p99", "p99_ms")):
        columns[f"{name} buckets"] = time("buckets", figure)
        columns[f"{name} `late`"] = time("late", figure)
        columns[f"{name} over buckets"] = over(figure)
        columns[f"{name} `adaptive`"] = time("adaptive", figure)
    return joined([f"### {found['dataset']}", table(columns, found["shares"].items())])


def fill(data: Data) -> Mapping[str, object]:
    studies, loads = data["studies"], list(data["settings"]["loads"])
    return {
        "claims": claims(studies, loads),
        "overall": overall(studies, loads),
        "latencies": latencies(studies, loads),
        "peaks": table(PEAK_COLUMNS, studies),
        "waits": waits(studies, loads),
        "case3": case3(data["case3"]),
        "pair_counts": counts(studies, "pairs", "buffer pairs, mean ms at high load"),
        "stage_counts": counts(studies, "stages", "stages, mean ms at high load"),
        "doubted": doubted(data["doubts"], loads),
        "throughput": throughput(data["cells"]),
        "cells": joined(map(cells, data["cells"])),
    }


def draw(data: Data, folder: Path) -> None:
    from loadtest.common import plots

    studies = data["studies"]
    shown = (*BASES, "no_wait", "DVABatch", "adaptive")
    series = {name: [found["loads"][name]["high"]["mean_ms"] for found in studies] for name in shown}
    plots.bars(list(map(named, studies)), series, "mean latency at high load, ms", folder / "stages.png")


PAGE = Page("stages", __file__, fill, draw=draw)
