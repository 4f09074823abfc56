"""The page of the rolling restart drill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, joined, table

#: One server replaced: its exit status, seconds from the signal to its end, and from the next one's start to ready.
Replacement = dict[str, Any]
#: One request that ends its process: its status, how many servers ended, and statuses of requests after it.
Poison = dict[str, Any]

LOADING = "status 503"  # of `starling bench`'s errors

ATTEMPTS: dict[str, Column] = {"attempts": lambda one: one[0], "requests": lambda one: f"{one[1]:,}"}
REPLACEMENTS: dict[str, Column] = {
    "server": "{server}",
    "exit status": "{exit}",
    "SIGTERM to end, s": "{ended_s:.1f}",
    "start to ready, s": "{ready_s:.1f}",
}


def lost(data: Data) -> int:
    """Requests without a right answer, but for those of a server that was loading."""
    load = data["load"]
    return int(load["requests"] - load["completed"] - load["errors"].get(LOADING, 0))


def missed(data: Data) -> list[str]:
    """What a drill must not show: a request without a right answer, or a server that did not end well."""
    found = [f"{count} x {kind}" for kind, count in data["load"]["errors"].items() if kind != LOADING]
    if lost(data) and not found:
        found.append(f"{lost(data)} requests without a right answer")
    poison = data.get("poison")
    if poison is not None and (poison["lost"] != 1 or set(poison["after"]) != {200}):
        found.append(f"a fatal request ended {poison['lost']} servers; then {poison['after']}")
    return found + [
        f"server {one['server']} ended with {one['exit']}" for one in data["replacements"] if one["exit"] != 0
    ]


def events(data: Data) -> str:
    """What else was seen."""
    parts = []
    if loading := data["load"]["errors"].get(LOADING, 0):
        parts.append(f"{loading:,} requests met a server that was loading its models, and were answered 503.")
    if poison := data.get("poison"):
        parts.append(
            f"At the end one request crashed the server that ran it: its client was answered {poison['status']}, "
            f"{poison['lost']} of the two servers ended, and {poison['after'].count(200)} of {len(poison['after'])} "
            "requests after it were answered."
        )
    return joined(parts)


def fill(data: Data) -> Mapping[str, object]:
    wrong = missed(data)
    attempts = sorted(data["attempts"].items(), key=lambda one: -one[1])
    return {
        "verdict": f"**{lost(data)} requests failed**: {'; '.join(wrong)}" if wrong else "No request failed",
        "again": sum(count for tried, count in attempts if "," in tried),
        "events": events(data),
        "attempts_table": table(ATTEMPTS, attempts),
        "replacements_table": table(REPLACEMENTS, data["replacements"]),
        "configuration": ", ".join(f"`{name} {value}`" for name, value in data["directives"].items()),
    }


PAGE = Page("drill", __file__, fill, missed)
