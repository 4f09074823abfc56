"""The page of DISB over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, filled, grid, joined, ms, spread, table

Figures = Mapping[str, Any]

ONE_WORKER, TWO_WORKERS = 1.15, 1.05  # of the mean of real time alone, at most
SHOWN = ("reef", "seq", "streams", "priority", "reef_2")
#: What is compared with real time alone: a class and its figure.
MEAN, P99, ANSWERS = ("realtime", "mean_ms"), ("realtime", "p99_ms"), ("all", "throughput")


def figure(runs: Sequence[Figures], klass: str, name: str) -> list[float | None]:
    """One figure of one class, a value for each run."""
    return [run["classes"].get(klass, {}).get(name) for run in runs]


def over(workload: Figures, column: str, which: tuple[str, str], base: str = "rt_only") -> list[float]:
    """A column's figure over that of real time alone, round by round, where both are known."""
    pairs = zip(figure(workload["runs"][column], *which), figure(workload["runs"][base], *which), strict=True)
    return [ours / alone for ours, alone in pairs if ours is not None and alone] or [float("nan")]


def missed(data: Data) -> list[str]:
    lines = []
    for name, workload in data["workloads"].items():
        seq = median(over(workload, "seq", ANSWERS))
        for column, most in (("reef", ONE_WORKER), ("reef_2", TWO_WORKERS)):
            mean = median(over(workload, column, MEAN, data["base"][column]))
            if not mean <= most:
                lines.append(f"{name}, {column}: real-time mean {mean:.2f} x alone, not {most:g}")
            # answers of both over the same one-worker server: two workers alone do more than one
            answers = median(over(workload, column, ANSWERS))
            if not answers > seq:
                lines.append(f"{name}, {column}: {answers:.2f} x the answers of real time alone, seq {seq:.2f}")
    return lines


def ratios(data: Data, which: tuple[str, str]) -> str:
    def cell(name: str, column: str) -> str:
        base = "rt_only" if which == ANSWERS else data["base"][column]
        return spread(over(data["workloads"][name], column, which, base), ".2f")

    return grid("", data["workloads"], dict(zip(SHOWN, SHOWN, strict=True)), cell)


def figures(data: Data) -> str:
    """Medians of each workload and column."""

    def middle(klass: str, name: str, form: str = "ms") -> Column:
        def text(row: Any) -> str:
            known = [value for value in figure(row[2], klass, name) if value is not None]
            return filled(f"{{value:{form}}}", value=median(known)) if known else ""

        return text

    columns: dict[str, Column] = {
        "workload": lambda row: row[0],
        "column": lambda row: f"`{row[1]}`",
        "real time: mean, ms": middle(*MEAN),
        "99 %, ms": middle(*P99),
        "answers/s": middle("realtime", "throughput", ".1f"),
        "dropped": middle("realtime", "dropped", ".0f"),
        "best effort: answers/s": middle("best_effort", "throughput", ".1f"),
        "lag, 99 %, ms": lambda row: ms(max(run["lag_p99_ms"] for run in row[2])),
    }
    rows = [
        (name, column, runs) for name, one in data["workloads"].items() for column, runs in one["runs"].items()
    ]  # fmt: skip
    return table(columns, rows)


def beside(data: Data) -> str:
    found = data["beside"]
    if not any(found.values()):
        return "Pairs of models were not measured: nothing fills what real time leaves."
    text = (
        "By how much each model was slowed beside another on a second worker, measured before; best-effort batches run "
        "beside real-time ones where it is at most 2 %:"
    )
    headings = {other: f"beside {other}" for other in found}
    slower = grid(
        "", found, headings, lambda name, other: f"{found[name][other]:+.1%}" if other in found[name] else ""
    )  # fmt: skip
    return joined([text, slower])


def fill(data: Data) -> Mapping[str, object]:
    models: dict[str, Column] = {
        "in the paper": "{name}",
        "ms": "{paper_ms:ms}",
        "here": "{is}",
        "ms alone": "{alone_ms:ms}",
        "ratio": lambda one: f"{one['alone_ms'] / one['paper_ms']:.2f}",
    }
    rates: dict[str, Column] = {
        "": "{name}",
        "share of real time alone, paper": "{share:.0%}",
        "rates here over the paper's": "{scale:.3f}",
    }
    return {
        "cores": data["facts"].get("cores", "?"),
        "columns": table(
            {"column": lambda one: f"`{one[0]}`", "what it is": lambda one: one[1]}, data["columns"].items()
        ),
        "mean_ratios": ratios(data, MEAN),
        "p99_ratios": ratios(data, P99),
        "answer_ratios": ratios(data, ANSWERS),
        "one_worker": ONE_WORKER,
        "two_workers": TWO_WORKERS,
        "figures": figures(data),
        "models": table(models, ({"name": name, **one} for name, one in data["models"].items())),
        "rates": table(rates, ({"name": name, **one} for name, one in data["workloads"].items())),
        "beside": beside(data),
    }


PAGE = Page("disb-live", __file__, fill, missed)
