"""The page of the rolling restart drill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from loadtest.common import markdown
from loadtest.common.markdown import ms


class Replacement(TypedDict):
    """One server replaced. Seconds from the signal to its end, and from the next one's start to ready."""

    server: str
    exit: int
    ended_s: float
    ready_s: float


class Poison(TypedDict):
    """One request that ends its process: its status, how many servers ended, and statuses of requests after it."""

    status: int
    lost: int
    after: list[int]


class Drill(TypedDict):
    facts: dict[str, str]
    settings: dict[str, Any]
    directives: dict[str, str]
    replacements: list[Replacement]
    load: dict[str, Any]
    attempts: dict[str, int]
    poison: NotRequired[Poison]  # of runs since there is one


LOADING = "status 503"  # of `starling bench`'s errors

HEAD = """\
# Rolling restart drill

nginx in front of two servers, with what ingress-nginx makes of the annotations in
[the ingress](../../deploy/kubernetes/base/ingress.yaml). `starling bench` puts {rate:g} requests/s of `{model}` on it,
Poisson arrivals, and compares the answers to equal requests. Meanwhile each server is replaced {times} time{plural}, in
turn: SIGTERM, {grace:g} s of grace, at most {limit:g} s of drain, and a new one on the same port once the old one has
ended. nginx is never told, as if the cluster's endpoints were never updated: it goes on trying the server that is away.
So while one is replaced the other alone serves, and every second request first meets a closed port, or a server whose
models are still loading. A request has failed if it got no right answer; a 503 of a server that is loading is counted
apart, since a cluster sends nothing there before it is ready.

A connection that is opened in the last 0.1 s before a listener closes is dropped by the kernel and tried again after
1 s, then refused: that is the longest wait to be expected here. In a cluster that has updated its endpoints nobody
opens one so late.
"""


def missed(data: Mapping[str, Any]) -> list[str]:
    """What a drill must not show: a request without a right answer, or a server that did not end well."""
    load = data["load"]
    found = [f"{count} x {kind}" for kind, count in load["errors"].items() if kind != LOADING]
    lost = load["requests"] - load["completed"] - load["errors"].get(LOADING, 0)
    if lost and not found:
        found.append(f"{lost} requests without a right answer")
    poison = data.get("poison")
    if poison is not None and (poison["lost"] != 1 or set(poison["after"]) != {200}):
        found.append(f"a fatal request ended {poison['lost']} servers; then {poison['after']}")
    return found + [
        f"server {one['server']} ended with {one['exit']}" for one in data["replacements"] if one["exit"] != 0
    ]


def write(data: Drill, folder: Path) -> list[str]:
    load, settings = data["load"], data["settings"]
    wrong = missed(data)
    loading = load["errors"].get(LOADING, 0)
    lost = load["requests"] - load["completed"] - loading
    again = sum(count for tried, count in data["attempts"].items() if "," in tried)
    verdict = "No request failed" if not wrong else f"**{lost} requests failed**: {'; '.join(wrong)}"
    parts = [
        HEAD.format(**settings, plural=markdown.plural(settings["times"])),
        f"{verdict}: {load['completed']:,} of {load['requests']:,} were answered rightly; latency {ms(load['p50_ms'])} "
        f"ms in the median, {ms(load['p99_ms'])} ms at 99 %, {ms(load['max_ms'])} ms at most. nginx tried {again:,} "
        "requests a second time.",
        *_told(data, loading),
        "## Attempts",
        "Statuses of what nginx tried, in turn; 502 is a connection that was refused or broken, 503 a server whose "
        "models were not loaded yet. Polls for readiness and the load's warm-up are among them.",
        markdown.table(
            ["attempts", "requests"],
            [[tried, f"{count:,}"] for tried, count in sorted(data["attempts"].items(), key=lambda one: -one[1])],
        ),
        "## Replacements",
        markdown.table(
            ["server", "exit status", "SIGTERM to end, s", "start to ready, s"],
            [
                [one["server"], str(one["exit"]), f"{one['ended_s']:.1f}", f"{one['ready_s']:.1f}"]
                for one in data["replacements"]
            ],
        ),
        "## Configuration",
        "From the ingress: " + ", ".join(f"`{name} {value}`" for name, value in data["directives"].items()) + ".",
        markdown.facts_list(data["facts"]),
    ]
    return [markdown.write(parts, folder / "drill.md")]


def _told(data: Drill, loading: int) -> list[str]:
    parts = []
    if loading:
        parts.append(f"{loading:,} requests met a server that was loading its models, and were answered 503.")
    poison = data.get("poison")
    if poison is not None:
        served = poison["after"].count(200)
        parts.append(
            f"At the end one request crashed the server that ran it: its client was answered {poison['status']}, "
            f"{poison['lost']} of the two servers ended, and {served} of {len(poison['after'])} requests after it were "
            "answered."
        )
    return parts
