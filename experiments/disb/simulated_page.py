"""The page of the simulated DISB: published figures beside ours, and what is assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, grid, lines_table, table

_SEQ_C_TO_E, _STREAMS_C_TO_E = "1.51 to 1.86", "2.65 to 3.31"
#: Published, over real time alone: mean latency of real-time requests, and throughput of all requests. By the name of
#: a column and the workload. Of C to E the text gives ranges for what it compares with.
LATENCY: Mapping[str, Mapping[str, str]] = {
    "seq": {"A": "1.95", "B": "1.12", **dict.fromkeys("CDE", _SEQ_C_TO_E), "REAL": "1.35"},
    "streams": {"A": "1.84", "B": "1.70", **dict.fromkeys("CDE", _STREAMS_C_TO_E), "REAL": "3.35"},
    "reef": {"A": "1.005", "B": "1.01", **dict.fromkeys("CDE", "< 1.015"), "REAL": "< 1.02"},
}
THROUGHPUT: Mapping[str, Mapping[str, str]] = {
    "seq": {"A": "1.46", "B": "0.96", **dict.fromkeys("CDE", "1.34 to 2.10"), "REAL": "3.6"},
    "streams": {"A": "1.66", "B": "0.76", **dict.fromkeys("CDE", "3.94 to 8.19"), "REAL": "8.3"},
    "reef": {"A": "1.60", "B": "1.14", "C": "near GPUStreams", "D": "3.00", "E": "2.96", "REAL": "7.7"},
}
ALONE = ("rt_only", "rt_workers")
NAMES = {"seq": "SEQ", "streams": "GPUStreams", "reef": "REEF"}

Cell = Mapping[str, Any]


def latency(cell: Cell) -> float:
    return float(cell["classes"]["realtime"]["mean_ms"])


def throughput(cell: Cell) -> float:
    return float(cell["classes"]["all"]["throughput"])


def by_place(data: Data) -> dict[tuple[str, str], Cell]:
    return {(one["workload"], one["column"]): one for one in data["cells"]}


def ratios(data: Data, value: Callable[[Cell], float], published: Mapping[str, Mapping[str, str]], digits: int) -> str:
    """A row for each workload: `value` of a column over that of real time alone, beside what is published."""
    cells = by_place(data)
    headings, texts = ["over `rt_only`"], {workload: [workload] for workload in data["settings"]["workloads"]}
    for name in data["settings"]["columns"]:
        if name in ALONE:
            continue
        known = published.get(name)
        headings += [f"`{name}`", *([f"{NAMES[name]}, published"] if known else [])]
        for workload, row in texts.items():
            row.append(f"{value(cells[workload, name]) / value(cells[workload, ALONE[0]]):.{digits}f}")
            row += [known.get(workload, "")] if known else []
    return lines_table(headings, texts.values())


def on_the_same_workers(data: Data) -> str:
    """Mean latency of what has a worker for each best-effort client, over real time alone on these."""
    cells = by_place(data)
    names = {name: f"`{name}`" for name in data["settings"]["columns"] if name.startswith("reef")}

    def cell(workload: str, name: str) -> str:
        return f"{latency(cells[workload, name]) / latency(cells[workload, ALONE[1]]):.3f}"

    return grid(f"over `{ALONE[1]}`", data["settings"]["workloads"], names, cell)


def variations(data: Data) -> str:
    cells = {(one["variation"], one["workload"]): one for one in data["varied"]}
    workloads = list(dict.fromkeys(workload for _, workload in cells))
    columns = {
        (kind, workload): f"{workload}: {heading}"
        for kind, heading in (("latency", "real-time latency"), ("throughput", "throughput"))
        for workload in workloads
    }

    def cell(name: str, column: tuple[str, str]) -> str:
        kind, workload = column
        return f"{cells[name, workload][kind]:.{3 if kind == 'latency' else 2}f}"

    return grid("over real time alone", dict.fromkeys(name for name, _ in cells), columns, cell)


def fill(data: Data) -> Mapping[str, object]:
    settings = data["settings"]
    pairs = {(one, other): part for one, other, part in sorted(settings["pairs"])}
    names = dict.fromkeys(one for one, _ in pairs)
    figures: dict[str, Column] = {
        "workload": "{workload}",
        "column": "`{column}`",
        "real time: mean, ms": "{classes[realtime][mean_ms]:ms}",
        "99 %, ms": "{classes[realtime][p99_ms]:ms}",
        "until its first unit, 50 / 99 %, ms": "{wait_p50_ms:ms} / {wait_p99_ms:ms}",
        "answers/s": "{classes[realtime][throughput]:.1f}",
        "dropped": "{classes[realtime][dropped]:,}",
        "best effort: answers/s": lambda cell: (
            f"{cell['classes']['best_effort']['throughput']:.1f}" if "best_effort" in cell["classes"] else ""
        ),
    }
    networks: dict[str, Column] = {
        "model": "{name}",
        "kernels": "{kernels}",
        "ms": "{total_ms:g}",
        "a kernel here, us": "{kernel_us[0]:.0f} to {kernel_us[1]:.0f}",
    }
    return {
        "columns": table(
            {"column": lambda one: f"`{one[0]}`", "what it is": lambda one: one[1]}, settings["columns"].items()
        ),
        "latencies": ratios(data, latency, LATENCY, 3),
        "on_the_same_workers": on_the_same_workers(data),
        "throughputs": ratios(data, throughput, THROUGHPUT, 2),
        "figures": table(figures, data["cells"]),
        "variations": variations(data),
        "networks": table(networks, settings["networks"]),
        "pairs": grid(
            "slowed by", names, {name: name for name in names}, lambda one, other: f"{pairs[one, other]:.2%}"
        ),
    }


PAGE = Page("disb-simulated", __file__, fill)
