"""The page of the overload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import ms

LEAST_GOODPUT = 0.6  # of that with the fewest connections
MOST_PROBE_MS = 500.0

HEAD = """\
# Overload

Clients of another process send again as soon as they are answered, also when they are refused, which is what no client
should do and most do. Each keeps its connection, or comes anew for each request; beside them `/livez` is asked on a
connection of its own, {every} s after its last answer. `echo` costs the server next to nothing but HTTP; `fifty` takes
50 ms a batch of 8 rows, so that it can answer {fifty:g} requests/s. Each load has a server of its own, 2 s of warm-up
and {seconds:g} s that count.

To reach: at least {least:g} of the goodput with the fewest connections, and 99 % of the probes within {probe:g} s. How
refusals are kept from starving answers is told in [the architecture](../architecture.md).
"""
LOADS = """\
Clients that come at a multiple of what `fifty` can answer, on a connection each, and go with an answer. Refused, they
send again at once (`resends`), or when `Retry-After` says (`waits`); or they leave after 2 s without an answer
(`leaves`).
"""
HEADINGS = (
    "clients", "connections", "answered/s", "of the first", "refused/s", "median ms", "99 % ms", "`/livez` 99 % ms",
    "met",
)  # fmt: skip
BY_LOAD = ("clients", "load", "answered/s", "refused/s", "left/s", "median ms", "99 % ms", "`/livez` 99 % ms")


def closed(figures: list[dict[str, Any]], *, fresh: bool) -> list[dict[str, Any]]:
    return [one for one in figures if not one["rate"] and one["fresh"] == fresh]


def share(one: Mapping[str, Any], figures: list[dict[str, Any]]) -> float:
    """Its goodput over that with the fewest connections of the same kind."""
    first = closed(figures, fresh=one["fresh"])[0]["goodput"]
    return float(one["goodput"] / first) if first else 0.0


def met(one: Mapping[str, Any], figures: list[dict[str, Any]]) -> bool:
    slow = one["probe_p99_ms"] is None or one["probe_p99_ms"] >= MOST_PROBE_MS
    return not slow and share(one, figures) >= LEAST_GOODPUT


def missed(data: Mapping[str, Any]) -> list[str]:
    """The loads that miss a target."""
    return [
        f"{model}, {one['connections']} {'new' if one['fresh'] else 'kept'} connections: {share(one, figures):.2f} of "
        f"the goodput, /livez {told(one['probe_p99_ms'])} ms"
        for model, figures in data["models"].items()
        for one in figures
        if not one["rate"] and not met(one, figures)
    ]


def told(value: float | None) -> str:
    return "none" if value is None else ms(value)


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    parts = [
        HEAD.format(
            every=0.02, fifty=data["fifty_per_s"], seconds=data["seconds"], least=LEAST_GOODPUT,
            probe=MOST_PROBE_MS / 1e3,
        )
    ]  # fmt: skip
    for model, figures in data["models"].items():
        rows = [
            [
                "come anew" if one["fresh"] else "keep theirs", f"{one['connections']:,}", f"{one['goodput']:,.0f}",
                f"{share(one, figures):.2f}", f"{one['refused']:,.0f}", told(one["p50_ms"]), told(one["p99_ms"]),
                told(one["probe_p99_ms"]), "yes" if met(one, figures) else "**NO**",
            ]
            for fresh in (False, True)
            for one in closed(figures, fresh=fresh)
        ]  # fmt: skip
        parts += [f"## {model}", markdown.table(HEADINGS, rows)]
        loads = [one for one in figures if one["rate"]]
        if loads:
            parts += [
                "## By load",
                LOADS,
                markdown.table(
                    BY_LOAD,
                    [
                        [
                            one["kind"], f"{one['rate'] / data['fifty_per_s']:g}", f"{one['goodput']:,.0f}",
                            f"{one['refused']:,.0f}", f"{one['left']:,.0f}", told(one["p50_ms"]), told(one["p99_ms"]),
                            told(one["probe_p99_ms"]),
                        ]
                        for one in loads
                    ],
                ),
            ]  # fmt: skip
    others = {
        kind: count for figures in data["models"].values() for one in figures for kind, count in one["failed"].items()
    }
    if others:
        parts.append(
            "Without an answer: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(others.items())) + "."
        )
    parts.append(markdown.facts_list(data["facts"]))
    return [markdown.write(parts, folder / "overload.md")]
