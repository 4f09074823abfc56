"""The page of the sampled server: the most expensive functions of each busy thread, before a change and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Data, Page, bullets, facts_list, joined, table

#: A run: `per_second` requests while sampled; by thread its name, the `share` of the time in which it ran, and `top`,
#: functions with their own and their total share of the samples. `before`: an older run to compare with.
Run = Mapping[str, Any]


def fill(data: Data) -> Mapping[str, object]:
    """The facts, then each thread's functions; with an older run under `before`, in both."""
    before = data.get("before")
    runs = {"": data} if before is None else {", before": before, ", after": data}
    names = dict.fromkeys(thread["name"] for run in (data, before or data) for thread in run["threads"])
    sections = [
        section(thread, run, when)
        for name in names
        for when, run in runs.items()
        for thread in run["threads"]
        if thread["name"] == name
    ]
    facts = facts_list(data["facts"]) if before is None else differences(before["facts"], data["facts"])
    return {"runs": joined([facts, *sections])}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The facts that both runs share as a list, and those that differ as a table: their rates and CPU times too."""
    names = list(dict.fromkeys([*before, *after]))
    same = [name for name in names if before.get(name) == after.get(name)]
    columns = {
        "": lambda name: name,
        "before": lambda name: before.get(name, "not known"),
        "after": lambda name: after.get(name, "not known"),
    }
    return joined(
        [bullets(f"{name}: {after[name]}" for name in same), table(columns, [one for one in names if one not in same])]
    )


def section(thread: Mapping[str, Any], run: Run, when: str) -> str:
    """The heading and the table of one thread in one run."""
    spent_us = thread["share"] / run["per_second"] * 1e6
    columns = {
        "self": lambda one: f"{one[1]:.1%}",
        "total": lambda one: f"{one[2]:.1%}",
        "a request": lambda one: f"{one[1] * spent_us:.1f} us",
        "function": lambda one: f"`{one[0]}`",
    }
    heading = f"## {thread['name']}{when}: running {thread['share']:.0%} of the time"
    return joined([heading, table(columns, thread["top"])])


PAGE = Page("hot-path", __file__, fill)
