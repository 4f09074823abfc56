"""Tables of the results, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from loadtest.common.markdown import ms, table

from .data import MEMORY_LIMIT, MIB, NETWORKS, Found


def title(name: str) -> str:
    return NETWORKS[name].title if name in NETWORKS else name


def told(values: Sequence[float] | None, digits: int = 2) -> str:
    """Median (least to most); empty if there are no values."""
    if not values:
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def figure6a(found: Found) -> str:
    first = {key: median(found["cells"][0][key]) for key in ("bare_ms", "slots_ms")}
    rows = [
        [str(cell["pieces"]), told(cell["bare_ms"], 3), f"{median(cell['bare_ms']) - first['bare_ms']:+.3f}",
         told(cell["slots_ms"], 3), f"{median(cell['slots_ms']) - first['slots_ms']:+.3f}"]
        for cell in found["cells"]
    ]  # fmt: skip
    made = table(("copies", "bare, ms", "more than one copy", "slots, ms", "more than one copy"), rows)
    return f"{made}\n\nThe host takes {found['issue_us']:.1f} us to enqueue a row's copy and its in-event."


def figure6b(runs: Sequence[Found]) -> str:
    rows = [
        [title(run["model"]), run["precision"], f"{cell['workers']} x {cell['size']}", told(cell.get("eager_ms")),
         told(cell["graphs_ms"]), told(cell["engine_ms"]) + ("" if cell["engine_graphs"] else ", no graphs"),
         f"{median(cell['engine_ms']) / median(run['cells'][0]['engine_ms']):.2f}"]
        for run in runs
        for cell in run["cells"]
    ]  # fmt: skip
    return table(("", "", "N x M", "bare, ms", "bare graphs, ms", "engine, ms", "x one batch"), rows)


def figure11(runs: Sequence[Found]) -> str:
    cases = [run for run in runs if "case" in run]
    one = next((run for run in cases if run["case"] == "one"), None)
    rows = []
    for run in cases:
        ratios = ["", ""]
        if one is not None:
            ratios = [f"{run['tensors'] / one['tensors']:.3f}"]
            ratios.append(f"{(run['tensors'] + run['pools']) / (one['tensors'] + one['pools']):.3f}")
        rows.append(
            [run["case"], ", ".join(map(str, run["workers"])), str(run["graphs"]),
             *(f"{run[key] / MIB:,.1f}" for key in ("weights", "tensors", "pools", "workspaces", "peak", "driver")),
             *ratios]
        )  # fmt: skip
    made = table(
        ("", "workers", "graphs", "weights", "tensors", "pools", "workspaces", "peak reserved", "driver",
         "tensors, x one", "with pools, x one"), rows,
    )  # fmt: skip
    return "\n\n".join([made, *_verdicts(cases, one), *_copies(runs)])


def _verdicts(cases: Sequence[Found], one: Found | None) -> list[str]:
    lines = []
    for run in cases:
        if one is None or run is one:
            continue
        bare = run["tensors"] / one["tensors"]
        pools = (run["tensors"] + run["pools"]) / (one["tensors"] + one["pools"])
        kept = ["within" if ratio <= MEMORY_LIMIT else "NOT within" for ratio in (bare, pools)]
        lines.append(
            f"- {run['case']}: {bare:.3f}, {kept[0]} {MEMORY_LIMIT}; with graphs' pools {pools:.3f}, {kept[1]}"
        )
    return ["\n".join(lines)] if lines else []


def _copies(runs: Sequence[Found]) -> list[str]:
    return [
        f"{run['copies']} copies of the weights, a worker each, take {run['allocated'] / MIB:,.1f} MiB: "
        f"{run['allocated'] / run['weights']:.2f} x one."
        for run in runs
        if "copies" in run
    ]


def boundaries(runs: Sequence[Found]) -> str:
    cuts, steps = [], []
    for run in runs:
        for cell in run["cells"]:
            first = ["yes" if cell["graphs"] else "no", str(cell["size"])]
            if cell["what"] == "cut":
                each = (median(cell["cut_us"]) - median(cell["whole_us"])) / (run["stages"] - 1)
                cuts.append([*first, told(cell["whole_us"], 0), told(cell["cut_us"], 0), f"{each:.0f}"])
            else:
                steps.append([*first, *(told(cell[key], 0) for key in ("host_us", "device_us", "join_us"))])
    return "\n\n".join(
        [
            table(("graphs", "rows", "whole, us", "cut, us", "a cut, us"), cuts),
            table(("graphs", "rows", "a step, us", "on the device, us", "with a join, us"), steps),
        ]
    )


def preemption(runs: Sequence[Found]) -> str:
    stops, beside = [], []
    for run in runs:
        for cell in run["cells"]:
            keys = ("whole_us", "stop_us", "alone_us", "real_us")
            late = f"{np.percentile(cell['stop_us'], 99):.0f}" if cell["stop_us"] else ""
            whole, stop, *real = (told(cell[key], 0) for key in keys)
            stops.append([str(cell["stages"]), whole, stop, late, *real])
        for cell in run["beside"]:
            slower = median(cell["beside_us"]) / median(cell["alone_us"]) - 1
            times = [told(cell[key], 0) for key in ("alone_us", "beside_us")]
            beside.append([*times, f"{slower:+.0%}", f"{cell['bulk_rows_s']:.0f}"])
    heads = ("stages", "bulk batch, us", "stops after, us", "p99", "real-time alone, us", "real-time, us")
    return "\n\n".join([table(heads, stops), table(("alone, us", "beside, us", "slower", "bulk rows/s"), beside)])


def effects(runs: Sequence[Found]) -> str:
    return "\n\n".join(
        [
            "Workers, rows/s:", _workers(runs),
            "Graphs, rows/s with and without:", _graphs(runs),
            "Push depth, rows/s:", _depths(runs),
            "bf16 against fp32, rows/s:", _precisions(runs),
            "One set of weights or a copy for each of six streams, total ms:", _sharing(runs),
        ]
    )  # fmt: skip


def rates(run: Found, **wanted: Any) -> dict[tuple[str, int, int], list[float]]:
    """Rows per second by (precision, size, workers), of the cells with these values."""
    return {
        (cell["precision"], cell["size"], cell["workers"]): cell["rows_s"]
        for cell in run["cells"]
        if all(cell[key] == value for key, value in wanted.items())
    }


def _workers(runs: Sequence[Found]) -> str:
    rows = []
    counts = sorted({cell["workers"] for run in runs for cell in run["cells"]})
    for run in runs:
        found = rates(run, graphs=True, depth=2)
        for precision, size in dict.fromkeys((key[0], key[1]) for key in found):
            cells = [found.get((precision, size, count)) for count in counts]
            rows.append([_captured(run), precision, str(size), *(told(values, 0) for values in cells)])
    return table(("", "", "rows a unit", *(f"{count} worker{'s' * (count > 1)}" for count in counts)), rows)


def _graphs(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        ours, theirs = rates(run, graphs=True, depth=2), rates(run, graphs=False, depth=2)
        rows += [
            [_captured(run), key[0], str(key[1]), str(key[2]), *_compared(ours[key], theirs[key], 0)]
            for key in ours
            if key in theirs
        ]  # fmt: skip
    return table(("", "", "rows a unit", "workers", "graphs", "none", "x"), rows)


def _captured(run: Found) -> str:
    """The model's title, and a note if no graphs were captured, so that all its units ran eagerly."""
    whole = all(cell["captured"] for cell in run["cells"] if cell["graphs"])
    return title(run["model"]) + ("" if whole else " (not captured)")


def _depths(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        found = {depth: rates(run, graphs=True, depth=depth) for depth in (1, 2, 3)}
        for key in found[1]:
            base = median(found[2][key])
            rows.append(
                [_captured(run), key[0], str(key[1]), str(key[2]), *(told(found[depth].get(key), 0) for depth in found),
                 *(f"{median(found[depth][key]) / base:.2f}" for depth in (1, 3))]
            )  # fmt: skip
    return table(
        ("", "", "rows a unit", "workers", "depth 1", "depth 2", "depth 3", "1, x depth 2", "3, x depth 2"), rows
    )


def _precisions(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        found = rates(run, graphs=True, depth=2)
        for precision, size, workers in found:
            base = found.get(("fp32", size, workers))
            if precision != "fp32" and base is not None:
                pair = _compared(found[precision, size, workers], base, 0)
                rows.append([title(run["model"]), str(size), str(workers), *pair])
    return table(("", "rows a unit", "workers", "bf16", "fp32", "x"), rows)


def _compared(ours: Sequence[float], theirs: Sequence[float], digits: int) -> list[str]:
    """Both medians and their ratio."""
    return [told(ours, digits), told(theirs, digits), f"{median(ours) / median(theirs):.2f}"]


def _sharing(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        times = {(cell["precision"], cell["size"], cell["copies"]): cell["ms"] for cell in run["sharing"]}
        rows += [
            [title(run["model"]), precision, str(size), *_compared(times[precision, size, 1], many, 3)]
            for (precision, size, copies), many in times.items()
            if copies > 1
        ]
    return table(("", "", "rows a unit", "shared", "copies", "x"), rows)


def engines(live: Found | None) -> str:
    """The engine that all policies had, for each model if they differ."""
    told = {run["model"]: _engine(run["engine"]) for run in (live or {"runs": []})["runs"]}
    if len(set(told.values())) < 2:
        return "".join(f"\nAll policies: {text}.\n" for text in dict.fromkeys(told.values()))
    return "\n" + "; ".join(f"{title(model)}: {text}" for model, text in told.items()) + ".\n"


def _engine(engine: Found) -> str:
    workers, graphs = ", ".join(map(str, engine["workers"])), "with" if engine["graphs"] else "without"
    return f"workers of {workers} rows, push depth {engine['push_depth']}, {graphs} CUDA graphs"


def peaks(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        times = run["profile"]["batch_ms"]
        largest = run["profile"]["largest"]
        device = largest * 1000 / times[str(largest)]
        base = run["peaks"].get("window", {}).get("rate")
        for name, peak in run["peaks"].items():
            rate = peak["rate"]
            more = f"{rate / base - 1:+.1%}" if rate and base else ""
            rows.append(
                [title(run["model"]), name, f"{rate:.0f}" if rate else "none", more,
                 ms(peak["p99_ms"]) if rate else "", f"{peak['mean_batch'] or 0:.1f}" if rate else "",
                 f"{rate / device:.0%}" if rate else "", peak["why"]]
            )  # fmt: skip
    return table(
        ("", "", "rate/s", "against `window`", "99 %, ms", "rows a batch", "of one worker's best", "limit"), rows
    )


def bursts(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        low = run.get("counts", [0])[0]
        means = {name: _halves(one["latency_ms"], low) for name, one in run["burst"].items() if "latency_ms" in one}
        base = means.get("window")
        for name, one in run["burst"].items():
            if name not in means:
                rows.append([title(run["model"]), name, *[""] * 6, one["why"]])
                continue
            part = means[name]
            less = [f"{1 - ours / theirs:.1%}" for ours, theirs in zip(part[:2], base[:2], strict=True)] if base else []
            rows.append(
                [title(run["model"]), name, *map(ms, part), *(less or ["", ""]), str(one["errors"]),
                 f"{one['lag_p99_ms']:.2f}"]
            )  # fmt: skip
    headings = ("", "", "mean at low, ms", "mean at high, ms", "99 % at high, ms", "below `window`, low", "high",
                "errors", "99 % of the client's lag, ms")  # fmt: skip
    rates_told = [
        f"{title(run['model'])}: {run['rates'][0]:.0f}/s, then {run['rates'][1]:.0f}/s; delay {run['delay_ms']:.2f} ms"
        for run in runs
        if "rates" in run
    ]
    return "\n\n".join([table(headings, rows), "; ".join(rates_told) + "."])


def _halves(latency: Sequence[Sequence[float]], low: int) -> tuple[float, float, float]:
    values = np.array(latency)
    return (
        float(np.nanmean(values[:, :low])), float(np.nanmean(values[:, low:])),
        float(np.nanquantile(values[:, low:], 0.99)),
    )  # fmt: skip


def energy(runs: Sequence[Found]) -> str:
    rows = []
    for run in runs:
        for name, steadies in run["steady"].items():
            for one in steadies:
                if one.get("joules") is None:
                    rows.append([title(run["model"]), name, f"{one['rate']:.0f}", "", "", one.get("why", "no answer")])
                    continue
                rows.append(
                    [title(run["model"]), name, f"{one['rate']:.0f}", ms(one["mean_ms"]), f"{one['joules']:.4f}",
                     one["source"]]
                )  # fmt: skip
    return table(("", "", "rate/s", "mean, ms", "joules a request", "source"), rows)
