"""The tables and sentences of what is measured by torch alone; see `tables`."""

from __future__ import annotations

from collections.abc import Callable

from experiments.gpu.blocks import Data
from loadtest.common.page import fmt, lines_table

Shown = tuple[str, Callable[[], str]]  # a table, and what makes the sentence


def stages_of(count: str) -> str:
    return f"{count} stage{'s' * (count != '1')}"


def _us(of: Data) -> list[str]:
    return [f"{of['p50']:,.1f}", f"{of['p99']:,.1f}"]


def ceilings(of: Data) -> Shown:
    rows = [(f"copies, {name}", f"{speed:,.0f} GB/s") for name, speed in of["copies_gb_s"].items()]
    rows += [(f"matrix products, {name}", f"{speed:,.0f} TFLOP/s") for name, speed in of["tflop_s"].items()]

    def said() -> str:
        return f"No network can do more than {of['tflop_s']['float16']:,.0f} TFLOP/s in float16 here."

    return lines_table(("", "at best"), rows), said


def host(of: Data) -> Shown:
    rows = [
        (f"replay, {nodes} node{'s' * (nodes != '1')}", *_us(one["host_us"])) for nodes, one in of["replays"].items()
    ]
    rows += [(name, *_us(one)) for name, one in of.get("calls_us", {}).items()]
    ways = of.get("from_end_to_python_us", {})
    rows += [(f"from the end of work to Python, {name}", *_us(one)) for name, one in ways.items()]
    rows += [(f"copy of {name}, host", *_us(one["host_us"])) for name, one in of.get("copies", {}).items()]
    if "pinned_mib_us" in of:
        rows.append(("a MiB of pinned memory", *_us(of["pinned_mib_us"])))

    def said() -> str:
        own = "blocking in another thread"
        names = ("blocking", "spinning", "polling every 20 us", own)
        best = min(names, key=lambda name: ways[name]["p50"])
        return (
            f"Python knows soonest of the end of work by {best}, after {ways[best]['p50']:,.0f} us; by {own}, as the"
            f" engine does, after {ways[own]['p50']:,.0f} us."
        )

    return lines_table(("", "p50, us", "p99, us"), rows), said


def sizes(of: Data) -> Shown:
    parts: list[str] = []
    for name, one in of["models"].items():
        counts, streams = list(one["graph_ms"]), list(one["beside_ms"])
        rows = [(way, *(fmt(one[f"{way}_ms"][n]) for n in counts)) for way in ("graph", "eager")]
        parts += [f"{name}, milliseconds of a batch:", lines_table(("rows", *counts), rows)]
        if streams:
            title = f"{of['rows_at_once']} rows on so many streams"
            rows = [(way, *(fmt(one[f"{way}_ms"][n]) for n in streams)) for way in ("beside", "behind")]
            parts.append(lines_table((title, *streams), rows))

    def said() -> str:
        spreads = {name: list(one["beside_ms"].values()) for name, one in of["models"].items() if one["beside_ms"]}
        each = [f"{name}: {max(times) / min(times):.2f} x" for name, times in spreads.items()]
        return f"The slowest split of {of['rows_at_once']} rows against the fastest: {', '.join(each)}."

    return "\n\n".join(parts), said


def preemption(of: Data) -> Shown:
    plans = of["plans"]
    rows = []
    for name, one in plans.items():
        rows.append((name, *_us(one), f"{one['bulk_rows_s']:,.0f}"))
    batches = ", ".join(f"{fmt(took)} ms in {stages_of(n)}" for n, took in of["bulk_ms"].items())

    def said() -> str:
        ran = {name: one for name, one in plans.items() if name != "alone"}
        best = min(ran, key=lambda name: ran[name]["p99"])
        beyond = ran[best]["p99"] - plans["alone"]["p50"]
        return (
            f"The lowest p99 is that of {best}: {ran[best]['p99']:,.0f} us, {beyond:,.0f} us beyond the median alone."
        )

    table = lines_table(("", "p50, us", "p99, us", "bulk, rows/s"), rows)
    return f"A batch of {of['rows']} rows of the bulk takes {batches}.\n\n{table}", said


_WAYS = ("ahead", "decided", "waited")


def boundaries(of: Data) -> Shown:
    counts = sorted({n for one in of["models"].values() for way in _WAYS for n in one[way]}, key=int)
    rows = []
    for name, one in of["models"].items():
        for way in _WAYS:
            cells = (fmt(one[way][n]) if n in one[way] else "" for n in counts)
            rows.append((name, way, *cells, one["us_each"].get(way, "")))

    def said() -> str:
        each = [f"{name}: {one['us_each']['decided']:.0f} us" for name, one in of["models"].items()]
        return f"A boundary at which the next stage is decided while one runs costs {', '.join(each)}."

    return lines_table(("batch", "launched", *(f"{stages_of(n)}, ms" for n in counts), "us each"), rows), said
