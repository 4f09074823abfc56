"""The page of the sampled server: the most expensive functions of each busy thread, before a change and after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict

from loadtest.common import markdown


class BusyThread(TypedDict):
    """`share`: of the time in which it ran. `top`: functions with their own and their total share of the samples."""

    name: str
    share: float
    top: list[tuple[str, float, float]]


class HotPath(TypedDict):
    """A run. `per_second`: requests while sampled. `before`: an older run to compare with."""

    facts: dict[str, str]
    per_second: float
    threads: list[BusyThread]
    before: NotRequired[HotPath]


NOTES = """\
Shares are of the samples in which that thread was running. "Self" is time in the function's own lines and in the C code
that it calls, which has no Python frame: for the loop's `run` that is libuv, the HTTP parser and reading from sockets;
for functions that write to the transport it is writing. "Total" adds the Python functions that it calls. Waiting for
the interpreter lock counts as running. "A request" is the function's own time over the requests of that time. Sampling
pauses the server, so its rate here is lower than in the benchmark.
"""
HEADINGS = ("self", "total", "a request", "function")


def write(data: HotPath, folder: Path) -> list[str]:
    """Write `hot-path.md`; with an older run under `before`, each thread's functions in both."""
    parts = ["# The hot path, sampled", NOTES]
    before = data.get("before")
    if before is None:
        parts.append(markdown.facts_list(data["facts"]))
        runs = {"": data}
    else:
        parts += differences(before["facts"], data["facts"])
        runs = {", before": before, ", after": data}
    for name in thread_names(data, *([] if before is None else [before])):
        for when, run in runs.items():
            parts += [
                part for thread in run["threads"] if thread["name"] == name for part in section(thread, run, when)
            ]
    return [markdown.write(parts, folder / "hot-path.md")]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The facts that both runs share as a list, and those that differ as a table: their rates and CPU times too."""
    names = list(dict.fromkeys([*before, *after]))
    same = {name: after[name] for name in names if before.get(name) == after.get(name)}
    rows = [[name, *(run.get(name, "not known") for run in (before, after))] for name in names if name not in same]
    return [markdown.facts_list(same), markdown.table(("", "before", "after"), rows)]


def thread_names(*runs: HotPath) -> list[str]:
    """The threads of all runs, each once: those of the first run come first."""
    return list(dict.fromkeys(thread["name"] for run in runs for thread in run["threads"]))


def section(thread: BusyThread, run: HotPath, when: str) -> tuple[str, str]:
    """The heading and the table of one thread in one run."""
    spent_us = thread["share"] / run["per_second"] * 1e6
    rows = [
        [f"{own:.1%}", f"{total:.1%}", f"{own * spent_us:.1f} us", f"`{name}`"] for name, own, total in thread["top"]
    ]
    return f"## {thread['name']}{when}: running {thread['share']:.0%} of the time", markdown.table(HEADINGS, rows)
