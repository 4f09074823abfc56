"""The page of Ebird's experiments: their figures beside ours, assumptions, and how much depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from loadtest.common.page import Column, Data, Page, grid, lines_table, standard_error, table

#: One network: the baseline's best throughput, the delays of the windows, and under the name of each figure of the
#: paper a run by server. A run has means by seed at the low and at the high rate, its tail, and one run as an example.
Study = Mapping[str, Any]
Run = Mapping[str, Any]
#: Throughput under QoS with an assumption at an extreme, by server, a value for each network.
Corner = Mapping[str, Any]

SERVERS = ("ebird", "adaptive")
PAPERS, TUNED = "window, paper's", "window, tuned"
# Assumptions that the headlines name.
ALL_ALIKE = "all alike"
ALL_AGAINST = "all against Ebird"


def reduction(runs: Mapping[str, Run], name: str, base: str, part: str) -> tuple[float, float]:
    """By which share the mean latency of `name` is below that of `base`, with its standard error over seeds."""
    ours, theirs = np.asarray(runs[name][f"{part}_ms"]), np.asarray(runs[base][f"{part}_ms"])
    ratio = float(ours.mean() / theirs.mean())
    return 1 - ratio, standard_error((ours - ratio * theirs) / theirs.mean())  # of a ratio of means over common seeds


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1%} to {max(values):.1%}"


def gains(rates: Mapping[str, Sequence[float]], server: str) -> list[float]:
    """Throughput over that of the tuned window, less one, for each network."""
    pairs = zip(rates[server], rates[TUNED], strict=True)
    return [rate / base - 1 if base else float("nan") for rate, base in pairs]


def headlines(studies: Sequence[Study], corners: Sequence[Corner]) -> str:
    def lower(figure: str, base: str, part: str) -> list[str]:
        return [span([reduction(found[figure], name, base, part)[0] for found in studies]) for name in SERVERS]

    def more(server: str) -> str:
        names = (server, TUNED)
        found = gains({name: [study["throughput"][name] for study in studies] for name in names}, server)
        return f"{fmean(found):.1%} ({max(found):.1%})"

    def cornered(assumption: str) -> list[str]:
        """The range over an assumption's corners of the mean gain over the networks."""
        found = [one["throughput"] for one in corners if one["assumption"] == assumption]
        means = ([fmean(gains(rates, server)) for rates in found] for server in SERVERS)
        return [f"{one[0]:.1%}" if len(one) == 1 else span(one) for one in means]

    rows = [
        [f"lower mean latency at {part} load, against {base} delay", published, *lower("burst", base, part)]
        for part, published in (("low", "44.6 to 70.9 %"), ("high", "7.4 to 53.1 %"))
        for base in (PAPERS, TUNED)
    ]
    near = lower("near_qos", TUNED, "high")
    rows += [
        ["the same, high = the baseline's largest rate within QoS", "7.4 to 53.1 %", *near],
        ["more throughput under QoS, mean (most)", "34.4 % (49.3 %)", *map(more, SERVERS)],
        ["the same, copies and gaps alike for both", "", *cornered(ALL_ALIKE)],
        ["the same, all assumptions against Ebird, three copy rates", "", *cornered(ALL_AGAINST)],
    ]
    return lines_table(("", "Ebird, published", "`ebird` here", "`adaptive` here"), rows)


def bursts(studies: Sequence[Study], figure: str) -> str:
    def below(base: str) -> Column:
        def text(row: Any) -> str:
            if row["name"] not in SERVERS:
                return ""
            found = (reduction(row["runs"], row["name"], base, part) for part in ("low", "high"))
            return " / ".join(f"{gain:.1%} ± {100 * off:.1f}" for gain, off in found)

        return text

    columns: dict[str, Column] = {
        "network": "{network}",
        "server": lambda row: row["name"] + (f" ({row['delay']:.3g} ms)" if row["delay"] else ""),
        "mean at low, ms": "{low_ms:error}",
        "mean at high, ms": "{high_ms:error}",
        "99 % at high, ms": "{high_p99_ms:ms}",
        "over QoS": "{over_qos:.1%}",
        "below paper's window, low / high": below(PAPERS),
        "below tuned window, low / high": below(TUNED),
    }
    rows = (
        {**run, "network": found["network"], "name": name, "delay": found["delays_ms"].get(name), "runs": found[figure]}
        for found in studies
        for name, run in found[figure].items()
    )
    return table(columns, rows)


def climbs(found: Study, shares: Sequence[float]) -> str:
    columns: dict[str, Column] = {"mean of each 150, ms": "{name}"}
    for number, share in enumerate(shares):
        columns[f"{share * found['capacity']:.0f}/s"] = f"{{means_ms[{number}]:ms}}"
    columns["over QoS"] = "{over_qos:.1%}"
    return table(columns, ({"name": name, **run} for name, run in found["climb"].items()))


def throughputs(studies: Sequence[Study]) -> str:
    def against(server: str) -> Column:
        return lambda found: f"{found['throughput'][server] / found['throughput'][TUNED] - 1:+.1%}"

    columns: dict[str, Column] = {"rows/s": "{network}"}
    columns |= {name: f"{{throughput[{name}]:.0f}}" for name in studies[0]["throughput"]}
    return table(
        {**columns, "ebird against window, tuned": against("ebird"), "adaptive against it": against("adaptive")},
        studies,
    )


def cornered(corners: Sequence[Corner]) -> str:
    """The table of corners, of which the first has all assumptions as they are."""

    def mean(server: str) -> Column:
        def text(corner: Corner) -> str:
            found = gains(corner["throughput"], server)
            return f"{fmean(found):+.1%} ({min(found):+.1%} to {max(found):+.1%})"

        return text

    def left(server: str, whole: float) -> Column:
        return lambda corner: f"{fmean(gains(corner['throughput'], server)) / whole:.0%}"

    columns: dict[str, Column] = {"assumption": "{assumption}", "at": "{corner}"}
    for server in SERVERS:
        whole = fmean(gains(corners[0]["throughput"], server))
        columns[f"`{server}`, mean (least to most)"] = mean(server)
        columns[f"left of {whole:+.1%}"] = left(server, whole)
    return table(columns, corners)


def fill(data: Data) -> Mapping[str, object]:
    studies, settings = data["studies"], data["settings"]
    deep = next(found for found in studies if "variants" in found)
    networks: dict[str, Column] = {
        "": "{network}",
        "T(1), ms": "{times_ms[1]:ms}",
        "T(32), ms": "{times_ms[32]:ms}",
        "copy of one, ms": "{times_ms[copy]:ms}",
        "baseline's T(32), ms": "{times_ms[joined 32]:ms}",
        "baseline's best, rows/s": "{capacity:.0f}",
        "all SMs busy, rows/s": "{gpu_peak:.0f}",
    }
    engines: dict[str, Column] = {
        "": "{name}",
        "mean at low, ms": "{low_ms:error}",
        "mean at high, ms": "{high_ms:error}",
        "99 % at high, ms": "{high_p99_ms:ms}",
    }
    reductions = {"low": "ebird, low", "high": "ebird, high", "adaptive_low": "adaptive, low",
                  "adaptive_high": "adaptive, high"}  # fmt: skip
    doubts = {one["doubt"]: one for one in data["doubts"]}
    return {
        "headlines": headlines(studies, data["corners"]),
        "layer_us": 1000 * settings["layer_ms"],
        "networks": table(networks, studies),
        "network": deep["network"],
        "bursts": bursts(studies, "burst"),
        "near_qos": bursts(studies, "near_qos"),
        "climbs": climbs(deep, settings["steps"]),
        "throughputs": throughputs(studies),
        "cornered": cornered(data["corners"]),
        "engines": table(engines, ({"name": name, **run} for name, run in deep["variants"].items())),
        "doubted": grid("", doubts, reductions, lambda doubt, key: span(doubts[doubt][key])),
    }


#: Servers that the plots show, by their titles there.
CLIMBING = {"no_wait, 12 threads": "no_wait, 12 threads", PAPERS: "window", "static": "static", "ebird": "ebird",
            "adaptive": "adaptive"}  # fmt: skip
BURSTING = {PAPERS: "window", "ebird": "ebird", "adaptive": "adaptive"}
SUSTAINED = {"static": "static", TUNED: "window", "no_wait, 12 threads": "no_wait, 12 threads", "ebird": "ebird",
             "adaptive": "adaptive"}  # fmt: skip


def draw(data: Data, folder: Path) -> None:
    from loadtest.common import plots

    studies, settings = data["studies"], data["settings"]

    def panels(figure: str, shares: Sequence[tuple[int, float]], shown: Mapping[str, str]) -> list[plots.Panel]:
        return [
            plots.Panel(
                found["network"],
                [(count, share * found["capacity"]) for count, share in shares],
                {title: found[figure][name]["run"] for name, title in shown.items()},
                qos_ms=settings["qos_ms"],
            )
            for found in studies
        ]

    climb, burst = [(150, share) for share in settings["steps"]], [(150, settings["low"]), (250, settings["high"])]
    plots.latency_by_request(panels("climb", climb, CLIMBING), folder / "ebird-steps.png")
    plots.latency_by_request(panels("burst", burst, BURSTING), folder / "ebird-burst.png")
    plots.bars(
        [found["network"] for found in studies],
        {title: [found["throughput"][name] for found in studies] for name, title in SUSTAINED.items()},
        f"rate/s with 99 % within {settings['qos_ms']:.0f} ms",
        folder / "ebird-throughput.png",
    )


PAGE = Page("ebird", __file__, fill, draw=draw)
