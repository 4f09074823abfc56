"""The page of the sampled server: the most expensive functions of each busy thread."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from loadtest.common import markdown


class BusyThread(TypedDict):
    """`share`: of the time in which it ran. `top`: functions with their own and their total share of the samples."""

    name: str
    share: float
    top: list[tuple[str, float, float]]


class HotPath(TypedDict):
    facts: dict[str, str]
    threads: list[BusyThread]


NOTES = """\
Shares are of the samples in which that thread was running. "Self" is time in the function's own lines and in the C code
that it calls, which has no Python frame: for the loop's `run` that is libuv, the HTTP parser and reading from sockets;
for functions that write to the transport it is writing. "Total" adds the Python functions that it calls. Waiting for
the interpreter lock counts as running. Sampling pauses the server, so its rate here is lower than in the benchmark.
"""


def write(data: HotPath, folder: Path) -> list[str]:
    parts = ["# The hot path, sampled", NOTES, markdown.facts_list(data["facts"])]
    for thread in data["threads"]:
        rows = [[f"{own:.1%}", f"{total:.1%}", f"`{name}`"] for name, own, total in thread["top"]]
        parts.append(f"## {thread['name']}: running {thread['share']:.0%} of the time")
        parts.append(markdown.table(("self", "total", "function"), rows))
    return [markdown.write(parts, folder / "hot-path.md")]
