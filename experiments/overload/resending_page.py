"""The page of the overload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, joined, ms, table

Load = Mapping[str, Any]

LEAST_GOODPUT = 0.6  # of that with the fewest connections
MOST_PROBE_MS = 500.0

BY_LOAD = """\
## By load

Clients that come at a multiple of what `fifty` can answer, on a connection each, and go with an answer. Refused, they
send again at once (`resends`), or when `Retry-After` says (`waits`); or they leave after 2 s without an answer
(`leaves`).
"""


def closed(loads: list[Load]) -> list[Load]:
    """The loads of a closed loop: those that keep their connections, then those that come anew."""
    return sorted((one for one in loads if not one["rate"]), key=lambda one: bool(one["fresh"]))


def share(one: Load, loads: list[Load]) -> float:
    """Its goodput over that with the fewest connections of the same kind."""
    first = next(other for other in closed(loads) if other["fresh"] == one["fresh"])["goodput"]
    return float(one["goodput"] / first) if first else 0.0


def met(one: Load, loads: list[Load]) -> bool:
    slow = one["probe_p99_ms"] is None or one["probe_p99_ms"] >= MOST_PROBE_MS
    return not slow and share(one, loads) >= LEAST_GOODPUT


def missed(data: Data) -> list[str]:
    return [
        f"{model}, {one['connections']} {'new' if one['fresh'] else 'kept'} connections: {share(one, loads):.2f} of "
        f"the goodput, /livez {_ms(one['probe_p99_ms'])} ms"
        for model, loads in data["models"].items()
        for one in closed(loads)
        if not met(one, loads)
    ]


def _ms(value: float | None) -> str:
    return "none" if value is None else ms(value)


LATENCIES: dict[str, Column] = {
    "median ms": lambda one: _ms(one["p50_ms"]),
    "99 % ms": lambda one: _ms(one["p99_ms"]),
    "`/livez` 99 % ms": lambda one: _ms(one["probe_p99_ms"]),
}


def section(model: str, loads: list[Load], fifty_per_s: float) -> str:
    by_connections: dict[str, Column] = {
        "clients": lambda one: "come anew" if one["fresh"] else "keep theirs",
        "connections": "{connections:,}",
        "answered/s": "{goodput:,.0f}",
        "of the first": lambda one: f"{share(one, loads):.2f}",
        "refused/s": "{refused:,.0f}",
        **LATENCIES,
        "met": lambda one: "yes" if met(one, loads) else "**NO**",
    }
    by_load: dict[str, Column] = {
        "clients": "{kind}",
        "load": lambda one: f"{one['rate'] / fifty_per_s:g}",
        "answered/s": "{goodput:,.0f}",
        "refused/s": "{refused:,.0f}",
        "left/s": "{left:,.0f}",
        **LATENCIES,
    }
    parts = [f"## {model}", table(by_connections, closed(loads))]
    rates = [one for one in loads if one["rate"]]
    return joined([*parts, BY_LOAD, table(by_load, rates)] if rates else parts)


def fill(data: Data) -> Mapping[str, object]:
    sections = [section(model, loads, data["fifty_per_s"]) for model, loads in data["models"].items()]
    others: dict[str, int] = {}
    for loads in data["models"].values():
        for one in loads:
            for kind, count in one["failed"].items():
                others[kind] = others.get(kind, 0) + count
    if others:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(others.items()))
        sections.append(f"Without an answer: {counts}.")
    return {"sections": joined(sections), "least": LEAST_GOODPUT, "probe": MOST_PROBE_MS / 1e3}


PAGE = Page("overload", __file__, fill, missed)
