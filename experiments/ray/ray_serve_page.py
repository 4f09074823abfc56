"""The page of one replica under Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

Figures = Mapping[str, Any]

HEAD = """\
# One replica under Ray Serve

The same models over HTTP as V2 JSON, a row a request, one compute thread, batches of up to {max_batch}: by the server
alone, by one replica of [`starling_app`](../ray.md) behind the proxy of Ray {ray}, and by a deployment that batches
with Ray's own `@serve.batch`, written as Ray's documentation writes one, with its default wait and with none. `echo`
computes nothing and shows what a request costs; `mlp` is three dense layers. {repeats} run(s) of {seconds:g} s of each,
in turns; medians, in brackets the least and the largest. Everything, the load's generator too, shares the machine: what
Ray's processes take, a server of `mlp` has not.
"""
WHAT_RAY_COSTS = """\
A request through Ray is taken by the proxy's process, pickled, sent to the replica, and its answer travels back; the
replica answers it as an ASGI application, not on [the fast path](../architecture.md#one-request-followed-through). That
is a price per request, whatever the model: a model that computes for longer pays a smaller part of it.
"""
LOADS = {
    "one": ("One request after another", "What a request takes when nothing else is there."),
    "many": ("{connections} connections, each with a request in flight", "What is answered at most."),
    "open": ("At random, {share:g} of what the slowest answers at most", "The same rate for all: {rates}."),
}


def spread(runs: Sequence[Figures], name: str, show: Any) -> str:
    values = [run[name] for run in runs]
    return f"{show(median(values))} ({show(min(values))} to {show(max(values))})"


def count(value: float) -> str:
    return f"{value:,.0f}"


def over(runs: Mapping[str, Sequence[Figures]], way: str, name: str) -> str:
    """The median against that of the server alone, round by round."""
    pairs = zip(runs[way], runs["alone"], strict=True)
    return f"{median(one[name] / other[name] for one, other in pairs):.3g}" if way != "alone" else ""


def section(data: Figures, load: str) -> list[str]:
    title, text = LOADS[load]
    named = ", ".join(f"`{model}` {count(rate)}/s" for model, rate in data["rates"].items())
    told = {**data["settings"], "rates": named}
    shown = "per_s" if load == "many" else "p50_ms"
    rows = [
        [
            f"`{model}`", data["ways"][way], spread(runs, "per_s", count), spread(runs, "p50_ms", ms),
            spread(runs, "p99_ms", ms), over(of_load[load], way, shown),
        ]
        for model, of_load in data["runs"].items()
        for way, runs in of_load[load].items()
    ]  # fmt: skip
    against = "requests/s over alone" if load == "many" else "50 % over alone"
    heads = ["model", "served by", "requests/s", "50 %, ms", "99 %, ms", against]
    return [f"## {title.format(**told)}", text.format(**told), table(heads, rows)]


def write(data: Figures, folder: Path) -> list[str]:
    ray = f"{data['ray']}{' (RAY_SERVE_THROUGHPUT_OPTIMIZED=1)' if data['settings']['optimized'] else ''}"
    parts = [HEAD.format(**data["settings"], ray=ray)]
    for load in LOADS:
        parts += section(data, load)
    parts += ["## Where it goes", WHAT_RAY_COSTS, markdown.facts_list(data["facts"])]
    return [markdown.write(parts, folder / "ray-serve.md")]
