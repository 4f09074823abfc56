"""The table of each block, and the sentence that its figures allow. What a block had no time for is an empty cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments.gpu import torch_tables
from experiments.gpu.blocks import Data
from loadtest.common.page import fmt, lines_table

Shown = tuple[str, str]  # a table, and a verdict


def ms(value: float | None) -> str:
    return "" if value is None else fmt(value)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def times(value: float) -> str:
    return f"{value:.2f} x"


def latencies(of: Data) -> list[str]:
    """Mean, p50, p99; with what failed."""
    cells = [ms(of.get(name)) for name in ("mean_ms", "p50_ms", "p99_ms")]
    if "faults" in of:
        cells[-1] += f", faults: {of['faults']}"
    return cells


LATENCY = ("mean, ms", "p50, ms", "p99, ms")


def tests(of: Data) -> Shown:
    counts = ", ".join(f"{count} {kind}" for kind, count in of["counts"].items()) or "none ran"
    failed = "\n".join(f"- `{line}`" for line in of["failed_tests"])
    ended = ", not over in their time" if of.get("unfinished") else ""
    verdict = "All passed." if of["passed"] else "Not all passed: until they do, no figure below means much."
    return f"`{of['tests']}`: {counts}{ended}.\n\n{failed}", verdict


def empty(of: Data) -> Shown:
    rows = [
        (way, f"{one['p50']:.0f}", f"{one['p99']:.0f}", f"{one['cpu_us']:.0f}")
        for way, one in _ways(of, "graphs", "eager")
    ]
    by_graph, eager = of["graphs"]["cpu_us"], of.get("eager", {}).get("cpu_us")
    verdict = f"A call alone costs the host {by_graph:.0f} us of CPU time with graphs"
    verdict += f", {eager:.0f} us without." if eager else "."
    return lines_table(("", "p50, us", "p99, us", "CPU time of all threads, us"), rows), verdict


def _ways(of: Data, *names: str) -> list[tuple[str, Data]]:
    return [(name, of[name]) for name in names if name in of]


def engine(of: Data) -> Shown:
    shares = of["shares"]
    headings = ["policy", "most, rows/s", "of the bare network"]
    headings += [f"{share:.0%}: {what}" for share in shares for what in ("mean, ms", "p99, ms")]
    rows = []
    for policy, one in of["policies"].items():
        most = one["closed"]["rows_s"]
        cells = [policy, number(most), f"{most / of['bare_rows_s']:.2f}"]
        for load in one.get("loads", ()):
            cells += [ms(load.get("mean_ms")), ms(load.get("p99_ms"))]
        rows.append(cells + [""] * (len(headings) - len(cells)))
    least = {policy: one["loads"][0]["mean_ms"] for policy, one in of["policies"].items() if one.get("loads")}
    best = min(least, key=lambda policy: least[policy])
    table = lines_table(headings, rows)
    intro = f"The bare network in batches of {of['largest']}: {number(of['bare_rows_s'])} rows/s.\n\n"
    return intro + table, (
        f"At {shares[0]:.0%} of the peak `{best}` has the lowest mean, {ms(least[best])} ms"
        + (f"; `window`'s is {times(least['window'] / least[best])} that." if "window" in least else ".")
    )


def classes(of: Data) -> Shown:
    ways = of["ways"]
    alone = ways["alone"]
    rows = []
    for name, one in ways.items():
        beyond = one["p50_ms"] - alone["p50_ms"], one["p99_ms"] - alone["p50_ms"]
        rows.append([name, *latencies(one), *map(ms, beyond), number(one.get("bulk_rows_s"))])
    headings = ("", *LATENCY, "p50 beyond alone, ms", "p99 beyond alone, ms", "bulk, rows/s")
    alone_rates = ", ".join(
        f"{number(rate)} in {stages} stage{'s' * (stages != '1')}, the longest of {ms(of['stage_ms'][stages])} ms"
        for stages, rate in of["bulk_alone_rows_s"].items()
    )
    staged = [name for name in ways if name.startswith("reef")]
    verdict = "; ".join(
        f"{name}: {times(ways[name]['mean_ms'] / alone['mean_ms'])} the mean alone, with"
        f" {ways[name]['bulk_rows_s'] / of['bulk_alone_rows_s'][name.split()[1]]:.0%} of the bulk's rows"
        for name in staged
    )
    return f"{lines_table(headings, rows)}\n\nRows/s of the bulk alone: {alone_rates}.", verdict + "."


def http(of: Data) -> Shown:
    rows = []
    rates = {name: sum(run["requests_s"] for run in runs) / len(runs) for name, runs in of["runs"].items()}
    for name, runs in of["runs"].items():
        faults = [run["faults"] for run in runs if "faults" in run]
        busy = max(run["client_busy"] for run in runs)
        each = " and ".join(number(run["requests_s"]) for run in runs)
        slow = " and ".join(ms(run.get("p99_ms")) for run in runs)
        rows.append([name, each, slow, *latencies(of["latency"].get(name, {}))[::2], f"{busy:.0%}", faults or ""])
    headings = (
        "", f"requests/s, {of['in_flight']} in flight", "p99 then, ms", "mean at one rate, ms", "p99 at one rate, ms",
        "of a core the client used", "faults",
    )  # fmt: skip
    others = {name: rate for name, rate in rates.items() if name != "Starling"}
    best = max(others, key=lambda name: others[name])
    verdict = f"Starling answers {times(rates['Starling'] / others[best])} the requests of {best}."
    if of.get("absent"):
        verdict += f" Not there: {', '.join(of['absent'])}."
    for name, why in of.get("not_started", {}).items():
        verdict += f" {name} did not start: {why[-200:]}"
    at = next((f", at {one['rate']:,.0f} requests/s" for one in of["latency"].values()), "")
    return lines_table(headings, rows) + f"\n\nThe one rate{at} is half of the slowest server's most.", verdict


def cells(of: Data) -> Shown:
    rows, said = [], []
    for name, one in of["models"].items():
        for way, rate in one["whole_rows_s"].items():
            rows.append([name, f"padded batches, {way}", number(rate), "", ""])
        if "cells" in one:
            by_steps = one["cells"]
            opened = by_steps.get("open", {})
            most = by_steps["closed"]["rows_s"]
            rows.append([name, "by steps", number(most), ms(opened.get("p50_ms")), ms(opened.get("p99_ms"))])
            said.append(f"{name}: {times(most / max(one['whole_rows_s'].values()))} the best padded batches")
    headings = ("model", "", "most, rows/s", "p50 at half of it, ms", "p99 at half of it, ms")
    return lines_table(headings, rows), f"By steps, {'; '.join(said)}."


def stages(of: Data) -> Shown:
    rows, rates = [], {}
    for name, one in of["ways"].items():
        rates[name] = one["closed"]["rows_s"]
        noted = "" if "no_graphs" not in one else "without graphs"
        rows.append([name, number(rates[name]), *latencies(one.get("open", {})), one["times_from"], noted])
    at = f"{of['share']:.0%} of the whole's most"
    headings = ("", "most, rows/s", *(f"{what} at {at}" for what in LATENCY), "batch times", "")
    whole = rates["whole, adaptive"]
    staged = {name: rate for name, rate in rates.items() if name.startswith("stages")}
    best = max(staged, key=lambda name: staged[name])
    return lines_table(headings, rows), (
        f"In {of['stages']} stages `{best.removeprefix('stages, ')}` serves the most rows/s, {times(staged[best] / whole)} the"
        " whole with `adaptive`."
    )


def life(of: Data) -> Shown:
    rows = []
    for part, names in (("reload", ("before", "during")), ("bulk calls", ("alone", "beside", "bulk"))):
        for name in names:
            if part in of:
                one = of[part][name]
                rows.append([f"{part}: {name}", number(one["rows_s"]), *latencies(one), ms(one.get("max_ms"))])
    said = []
    if "two models" in of:
        two = of["two models"]
        for name, one in (("one", two["alone"]), ("each of two", two["both"][0]), ("", two["both"][1])):
            rows.append([f"two models: {name}", number(one["rows_s"]), *latencies(one), ms(one.get("max_ms"))])
        both = sum(one["rows_s"] for one in two["both"])
        said.append(f"two models serve {times(both / two['alone']['rows_s'])} the rows of one")
    if "reload" in of:
        reload = of["reload"]
        said.append(
            f"while a version is loaded the p99 is {times(reload['during']['p99_ms'] / reload['before']['p99_ms'])}"
        )
    if "out of memory" in of:
        heavy = of["out of memory"]
        said.append(
            f"of 100 calls, 10 of them too large, {heavy['right']} were right, {heavy['failed']} failed and {heavy['wrong']} were wrong"
        )
    lost = sum(sum(one.get("faults", {}).values()) for one in _loads(of))
    said.append(f"{lost} other calls were lost")
    text = "; ".join(said)
    return lines_table(("", "rows/s", *LATENCY, "longest, ms"), rows), f"{text[0].upper()}{text[1:]}."


def _loads(of: Any) -> list[Data]:
    """All loads of a block."""
    if isinstance(of, list):
        return [load for one in of for load in _loads(one)]
    if not isinstance(of, dict):
        return []
    return [of] if "rows_s" in of else [load for one in of.values() for load in _loads(one)]


TABLES: dict[str, Callable[[Data], Shown]] = {
    "tests": tests, "empty": empty, "engine": engine, "classes": classes, "http": http, "cells": cells,
    "stages": stages, "life": life, "ceilings": torch_tables.ceilings, "preemption": torch_tables.preemption,
    "boundaries": torch_tables.boundaries, "host": torch_tables.host, "sizes": torch_tables.sizes,
}  # fmt: skip


def left_out(blocks: Data, names: Sequence[str]) -> list[str]:
    """All that there was no time for: whole blocks, and parts of others."""
    parts = [f"{name}: {part}" for name, of in blocks.items() for part in of.get("left_out", ())]
    return [*names, *parts]
