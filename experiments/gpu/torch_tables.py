"""The tables and verdicts of what is measured by torch alone."""

from __future__ import annotations

from itertools import chain

from experiments.gpu.blocks import Data
from loadtest.common.page import fmt, lines_table

Shown = tuple[str, str]


def _us(of: Data) -> list[str]:
    return [f"{of['p50']:,.1f}", f"{of['p99']:,.1f}"]


def ceilings(of: Data) -> Shown:
    rows = [(f"copies, {name}", f"{speed:,.0f} GB/s") for name, speed in of["copies_gb_s"].items()]
    rows += [(f"matrix products, {name}", f"{speed:,.0f} TFLOP/s") for name, speed in of["tflop_s"].items()]
    half = of["tflop_s"]["float16"]
    return lines_table(("", "at best"), rows), f"{half:,.0f} TFLOP/s in float16 are the most that a network can reach."


def host(of: Data) -> Shown:
    rows = [(f"replay of {nodes} nodes, host", *_us(one["host_us"])) for nodes, one in of["replays"].items()]
    groups = (
        ("", of.get("calls_us", {})), ("from the end of work to Python, ", of.get("from_end_to_python_us", {})),
    )  # fmt: skip
    rows += [(f"{group}{name}", *_us(one)) for group, of_group in groups for name, one in of_group.items()]
    rows += [(f"copy of {name}, host", *_us(one["host_us"])) for name, one in of.get("copies", {}).items()]
    if "pinned_mib_us" in of:
        rows.append(("a MiB of pinned memory", *_us(of["pinned_mib_us"])))
    ways = of["from_end_to_python_us"]
    names = ("blocking", "spinning", "polling every 20 us", "blocking in another thread")
    best = min(names, key=lambda name: ways[name]["p50"])
    return lines_table(("", "p50, us", "p99, us"), rows), (
        f"Python knows soonest of the end of work by {best}, after {ways[best]['p50']:,.0f} us;"
        f" blocking in another thread, as the engine does, takes {ways[names[-1]]['p50']:,.0f} us."
    )


def sizes(of: Data) -> Shown:
    parts, said = [], []
    for name, one in of["models"].items():
        counts = list(one["graph_ms"])
        rows = [(way, *(fmt(one[f"{way}_ms"][count]) for count in counts)) for way in ("graph", "eager")]
        parts += [f"{name}: milliseconds of a batch.", lines_table(("rows", *counts), rows)]
        streams = list(one["beside_ms"])
        if streams:
            rows = [(way, *(fmt(one[f"{way}_ms"][n]) for n in streams)) for way in ("beside", "behind")]
            title = f"{of['rows_at_once']} rows on so many streams"
            parts += [lines_table((title, *streams), rows)]
            ratio = max(one["beside_ms"].values()) / min(one["beside_ms"].values())
            said.append(f"{name}: the worst split of {of['rows_at_once']} rows takes {ratio:.2f} x the best")
    return "\n\n".join(parts), "; ".join(said) + "."


def preemption(of: Data) -> Shown:
    plans = of["plans"]
    rows = []
    for name, one in plans.items():
        cells = [one["failed"], "", ""] if "failed" in one else [*_us(one), f"{one['bulk_rows_s']:,.0f}"]
        rows.append((name, *cells))
    alone = plans["alone"]["p50"]
    ran = {name: one for name, one in plans.items() if "p99" in one and "alone" not in name}
    best = min(ran, key=lambda name: ran[name]["p99"])
    batches = ", ".join(f"{fmt(took)} ms in {n} stages" for n, took in of["bulk_ms"].items())
    table = lines_table(("", "p50, us", "p99, us", "bulk, rows/s"), rows)
    return f"A batch of {of['rows']} rows of the bulk takes {batches}.\n\n{table}", (
        f"The lowest p99 is that of {best}: {ran[best]['p99']:,.0f} us, {ran[best]['p99'] - alone:,.0f} us beyond the median alone."
    )


def boundaries(of: Data) -> Shown:
    rows, said = [], []
    for name, one in of["models"].items():
        ways = [way for way in ("ahead", "decided", "waited") if one[way]]
        counts = sorted(set(chain.from_iterable(one[way] for way in ways)), key=int)
        for way in ways:
            rows.append((name, way, *(fmt(one[way][n]) if n in one[way] else "" for n in counts), one["us_each"][way]))
        if "decided" in ways:
            said.append(f"{name}: {one['us_each']['decided']:.0f} us")
    most = max((len(row) for row in rows), default=0)
    table = lines_table(("batch", "", *_stages(of), "us each"), [row for row in rows if len(row) == most])
    return table, f"A boundary at which the next stage is decided while one runs costs {'; '.join(said)}."


def _stages(of: Data) -> list[str]:
    every = {n for one in of["models"].values() for n in one["ahead"]}
    return [f"{n} stages, ms" for n in sorted(every, key=int)]
