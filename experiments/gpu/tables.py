"""The table of each block, and a function that makes the sentence which its figures allow.

A block that was cut off has a table of what it had found; the sentence may then be missing.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.gpu.blocks import SPECS, Data
from loadtest.common.page import fmt, lines_table

Shown = tuple[str, Callable[[], str]]  # a table, and what makes the sentence

LATENCY = ("mean, ms", "p50, ms", "p99, ms")


def ms(value: float | None) -> str:
    return "" if value is None else fmt(value)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def times(value: float) -> str:
    return f"{value:.2f} x"


def stages_of(count: str) -> str:
    return f"{count} stage{'s' * (count != '1')}"


def latencies(of: Data) -> list[str]:
    """Mean, p50 and p99, with what failed."""
    cells = [ms(of.get(name)) for name in ("mean_ms", "p50_ms", "p99_ms")]
    if "faults" in of:
        cells[-1] += f", faults: {of['faults']}"
    return cells


def tests(of: Data) -> Shown:
    counts = ", ".join(f"{count} {kind}" for kind, count in of["counts"].items()) or "none ran"
    failed = "\n".join(f"- `{line}`" for line in of["failed_tests"])
    ended = ", not over in their time" if of.get("unfinished") else ""

    def said() -> str:
        return "All passed." if of["passed"] else "Not all passed: until they do, no figure below means much."

    return f"`{of['tests']}`: {counts}{ended}.\n\n{failed}", said


def ceilings(of: Data) -> Shown:
    rows = [(f"copies, {name}", f"{speed:,.0f} GB/s") for name, speed in of["copies_gb_s"].items()]
    rows += [(f"matrix products, {name}", f"{speed:,.0f} TFLOP/s") for name, speed in of["tflop_s"].items()]

    def said() -> str:
        return f"No network can do more than {of['tflop_s']['float16']:,.0f} TFLOP/s in float16 here."

    return lines_table(("", "at best"), rows), said


def empty(of: Data) -> Shown:
    ways = {name: of[name] for name in ("graphs", "eager") if name in of}
    rows = [(way, f"{one['p50']:.0f}", f"{one['p99']:.0f}", f"{one['cpu_us']:.0f}") for way, one in ways.items()]

    def said() -> str:
        spent = f"{of['graphs']['cpu_us']:.0f} us of CPU time with graphs, {of['eager']['cpu_us']:.0f} us without"
        return f"A call alone costs the host {spent}."

    return lines_table(("", "p50, us", "p99, us", "CPU time of all threads, us"), rows), said


def engine(of: Data) -> Shown:
    shares, bare = of["shares"], of.get("bare_rows_s")
    headings = ["policy", "batch times", "most, rows/s", "of the bare network"]
    headings += [f"{share:.0%}: {what}" for share in shares for what in ("mean, ms", "p99, ms")]
    rows = []
    for policy, one in of["policies"].items():
        most = one["closed"]["rows_s"]
        loads = [cell for load in one["loads"] for cell in latencies(load)[::2]]
        rows.append([policy, one["times_from"], number(most), f"{most / bare:.2f}" if bare else "", *loads])

    def said() -> str:
        means = {policy: one["loads"][0]["mean_ms"] for policy, one in of["policies"].items()}
        best = min(means, key=lambda policy: means[policy])
        against = times(means["window"] / means[best])
        least = f"At {shares[0]:.0%} of the peak `{best}` has the lowest mean, {ms(means[best])} ms"
        return f"{least}; that of `window` is {against}."

    intro = f"The bare network in batches of {of['largest']}: {number(bare)} rows/s.\n\n"
    return intro + lines_table(headings, rows), said


def classes(of: Data) -> Shown:
    ways, alone = of["ways"], of["ways"]["alone"]
    rows = []
    for name, one in ways.items():
        beyond = (one["p50_ms"] - alone["p50_ms"], one["p99_ms"] - alone["p50_ms"])
        rows.append([name, *latencies(one), *map(ms, beyond), number(one.get("bulk_rows_s"))])
    headings = ("", *LATENCY, "p50 beyond p50 alone, ms", "p99 beyond p50 alone, ms", "bulk, rows/s")
    rates = ", ".join(
        f"{number(rate)} in {stages_of(stages)}, the longest of {ms(of['stage_ms'][stages])} ms"
        for stages, rate in of["bulk_alone_rows_s"].items()
    )

    def said() -> str:
        each = []
        for stages, rate in of["bulk_alone_rows_s"].items():
            one = ways[f"reef, {stages_of(stages)}"]
            share = f"{one['bulk_rows_s'] / rate:.0%} of the bulk's rows"
            each.append(
                f"with {stages_of(stages)} {times(one['mean_ms'] / alone['mean_ms'])} the mean alone, and {share}"
            )
        return f"`reef`: {'; '.join(each)}."

    return f"{lines_table(headings, rows)}\n\nThe bulk alone, rows/s: {rates}.", said


def http(of: Data) -> Shown:
    rows = []
    for name, runs in of["runs"].items():
        faults = [run["faults"] for run in runs if "faults" in run]
        busy = max(run["client_busy"] for run in runs)
        each = " and ".join(number(run["requests_s"]) for run in runs)
        slow = " and ".join(ms(run.get("p99_ms")) for run in runs)
        rows.append([name, each, slow, *latencies(of["latency"].get(name, {}))[::2], f"{busy:.0%}", faults or ""])
    rate = next((f" of {one['rate']:,.0f} requests/s" for one in of["latency"].values()), "")
    headings = (
        "", f"requests/s, {of['in_flight']} in flight", "p99 then, ms", "mean at one rate, ms", "p99 at one rate, ms",
        "of a core that the client used", "faults",
    )  # fmt: skip
    notes = [f"The one rate{rate} is half of the slowest server's most."]
    notes += [f"{name} did not start: `{why[-200:]}`" for name, why in of.get("not_started", {}).items()]

    def said() -> str:
        rates = {name: sum(run["requests_s"] for run in runs) / len(runs) for name, runs in of["runs"].items()}
        best = max((name for name in rates if name != "Starling"), key=lambda name: rates[name])
        return f"Starling answers {times(rates['Starling'] / rates[best])} the requests of {best}."

    return "\n\n".join([lines_table(headings, rows), *notes]), said


def cells(of: Data) -> Shown:
    rows = []
    for name, one in of["models"].items():
        rows += [[name, f"padded batches, {way}", number(rate), "", ""] for way, rate in one["whole_rows_s"].items()]
        if "cells" in one:
            opened = one["cells"]["open"]
            rows.append([name, "by steps", number(one["cells"]["closed"]["rows_s"]), *latencies(opened)[1:]])

    def said() -> str:
        each = [
            f"{name}: {times(one['cells']['closed']['rows_s'] / max(one['whole_rows_s'].values()))}"
            for name, one in of["models"].items()
        ]
        return f"By steps, against the best padded batches: {', '.join(each)}."

    headings = ("model", "", "most, rows/s", "p50 at half of it, ms", "p99 at half of it, ms")
    return lines_table(headings, rows), said


def stages(of: Data) -> Shown:
    rows = []
    for name, one in of["ways"].items():
        noted = "" if "no_graphs" not in one else "without graphs"
        rows.append([name, number(one["closed"]["rows_s"]), *latencies(one["open"]), one["times_from"], noted])
    at = f"{of['share']:.0%} of the whole's most"

    def said() -> str:
        rates = {name: one["closed"]["rows_s"] for name, one in of["ways"].items()}
        best = max((name for name in rates if name.startswith("stages")), key=lambda name: rates[name])
        policy, ratio = best.removeprefix("stages, "), times(rates[best] / rates["whole, adaptive"])
        return f"In {of['stages']} stages `{policy}` serves the most rows/s: {ratio} the whole with `adaptive`."

    headings = ("", "most, rows/s", *(f"{what} at {at}" for what in LATENCY), "batch times", "")
    return lines_table(headings, rows), said


def life(of: Data) -> Shown:
    two = of.get("two models", {"both": []})
    loads = {f"reload: {name}": one for name, one in of.get("reload", {}).items() if name in ("before", "during")}
    loads |= {"two models: one alone": two["alone"]} if "alone" in two else {}
    loads |= {f"two models: {name}": one for name, one in zip(("first", "second"), two["both"], strict=False)}
    loads |= {f"bulk calls: {name}": one for name, one in of.get("bulk calls", {}).items()}
    heavy = of.get("out of memory", {})
    loads |= {"out of memory: the other model": heavy["beside"]} if heavy else {}
    rows = [[name, number(one["rows_s"]), *latencies(one), ms(one.get("max_ms"))] for name, one in loads.items()]

    def said() -> str:
        both = times(sum(one["rows_s"] for one in two["both"]) / two["alone"]["rows_s"])
        slower = times(of["reload"]["during"]["p99_ms"] / of["reload"]["before"]["p99_ms"])
        lost = sum(sum(one.get("faults", {}).values()) for one in loads.values())
        return (
            f"While versions replace one another the p99 is {slower}; two models serve {both} the rows of one; of 100"
            f" calls, 10 of them too large, {heavy['right']} right, {heavy['failed']} failed, {heavy['wrong']} wrong;"
            f" {lost} other calls were lost."
        )

    return lines_table(("", "rows/s", *LATENCY, "longest, ms"), rows), said


TABLES: dict[str, Callable[[Data], Shown]] = {
    "tests": tests, "ceilings": ceilings, "empty": empty, "engine": engine, "classes": classes, "http": http,
    "cells": cells, "stages": stages, "life": life,
}  # fmt: skip


def left_out(blocks: Data) -> list[str]:
    """What is not on the page: whole blocks, and parts of others that there was no time for."""
    absent = [spec.name for spec in SPECS if spec.name not in blocks]
    return [*absent, *(f"{name}: {part}" for name, of in blocks.items() for part in of.get("left_out", ()))]
