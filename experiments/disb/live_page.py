"""The page of DISB over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

Figures = Mapping[str, Any]

ONE_WORKER, TWO_WORKERS = 1.15, 1.05  # of the mean of real time alone, at most
SHOWN = ("reef", "seq", "streams", "priority", "reef_2")

HEAD = """\
# DISB over HTTP

REEF's benchmark on this machine's CPU: five models in stages take the places of the paper's, and rates are scaled, each
workload by one factor, so that real time alone uses the share of the time that it does in the paper. Latencies of
real-time requests run from the launch; a client has one request at a time, and of the instants that pass meanwhile the
newest is launched and the others are dropped. Each figure is the median of {repeats} run(s) of {seconds:g} s, the least
and the largest in brackets; a ratio is to real time alone on the same server and in the same round.
"""
CORES = """\
The machine has {cores} cores, on which the server's event loop, the load generator and the workers run. With one worker
nothing is computed beside real time: best-effort work fills gaps only, and a real-time request waits for the stage that
runs. With two workers of one thread each, every core computes, and loop and generator take their time from them: no
core is left. A machine with more cores is needed to show what REEF calls padding.
"""


class Ratio(NamedTuple):
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio:
    """Round by round, where both are known."""
    found = [one / other for one, other in zip(ours, theirs, strict=True) if one is not None and other]
    return Ratio(median(found), min(found), max(found)) if found else Ratio(*[float("nan")] * 3)


def column(runs: Sequence[Figures], klass: str, name: str) -> list[float | None]:
    """One figure of one class, a value for each run."""
    return [run["classes"].get(klass, {}).get(name) for run in runs]


def over(workload: Figures, name: str, base: str = "rt_only") -> dict[str, Ratio]:
    """Of a column over real time alone: mean and 99th percentile of real time, and all answers."""
    ours, theirs = workload["runs"][name], workload["runs"][base]
    figures = {"mean": ("realtime", "mean_ms"), "p99": ("realtime", "p99_ms"), "all": ("all", "throughput")}
    return {title: ratio(column(ours, *which), column(theirs, *which)) for title, which in figures.items()}


def missed(data: Figures) -> list[str]:
    """The targets that are missed, a line each."""
    lines = []
    for name, workload in data["workloads"].items():
        seq = over(workload, "seq")["all"].median
        for one, most in (("reef", ONE_WORKER), ("reef_2", TWO_WORKERS)):
            found = over(workload, one, data["base"][one])
            if not found["mean"].median <= most:
                lines.append(f"{name}, {one}: real-time mean {found['mean'].median:.2f} x alone, not {most:g}")
            # answers of both over the same one-worker server: two workers alone do more than one
            answers = over(workload, one)["all"].median
            if not answers > seq:
                lines.append(f"{name}, {one}: {answers:.2f} x the answers of real time alone, seq {seq:.2f}")
    return lines


def _ratios(data: Figures, which: str) -> str:
    rows = []
    for name, workload in data["workloads"].items():
        base = {one: "rt_only" if which == "all" else data["base"][one] for one in SHOWN}
        rows.append([name, *(str(over(workload, one, base[one])[which]) for one in SHOWN)])
    return table(["", *SHOWN], rows)


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _cells(runs: Sequence[Figures]) -> list[str]:
    def shown(klass: str, name: str, form: str = "ms") -> str:
        value = _middle(column(runs, klass, name))
        return "" if value is None else ms(value) if form == "ms" else format(value, form)

    return [
        shown("realtime", "mean_ms"), shown("realtime", "p99_ms"), shown("realtime", "throughput", ".1f"),
        shown("realtime", "dropped", ".0f"), shown("best_effort", "throughput", ".1f"),
        ms(max(run["lag_p99_ms"] for run in runs)),
    ]  # fmt: skip


def _details(data: Figures) -> str:
    rows = [
        [name, f"`{one}`", *_cells(runs)]
        for name, workload in data["workloads"].items()
        for one, runs in workload["runs"].items()
    ]
    heads = ("real time: mean, ms", "99 %, ms", "answers/s", "dropped", "best effort: answers/s", "lag, 99 %, ms")
    return table(("", "", *heads), rows)


def _models(data: Figures) -> str:
    rows = [
        [name, ms(one["paper_ms"]), one["is"], ms(one["alone_ms"]), f"{one['alone_ms'] / one['paper_ms']:.2f}"]
        for name, one in data["models"].items()
    ]
    return table(("in the paper", "ms", "here", "ms alone", "ratio"), rows)


def _rates(data: Figures) -> str:
    rows = [[name, f"{one['share']:.0%}", f"{one['scale']:.3f}"] for name, one in data["workloads"].items()]
    return table(("", "share of real time alone, paper", "rates here over the paper's"), rows)


def _beside(data: Figures) -> str:
    found = data["beside"]
    if not any(found.values()):
        return "Pairs of models were not measured: nothing fills what real time leaves."
    rows = [
        [name, *(f"{known[other]:+.1%}" if other in known else "" for other in found)] for name, known in found.items()
    ]
    return "\n\n".join(
        [
            "By how much each model was slowed beside another on a second worker, measured before; best-effort batches "
            "run beside real-time ones where it is at most 2 %:",
            table(["", *(f"beside {other}" for other in found)], rows),
        ]
    )


def write(data: Figures, folder: Path) -> list[str]:
    faults = missed(data)
    titles = table(("column", "what it is"), [[f"`{name}`", text] for name, text in data["columns"].items()])
    parts = [
        HEAD.format(**data["settings"]), titles, CORES.format(cores=data["facts"].get("cores", "?")),
        "## Mean latency of real time, over real time alone", _ratios(data, "mean"),
        "## 99th percentile of real time, over real time alone", _ratios(data, "p99"),
        "## All answers a second, over real time alone on one worker", _ratios(data, "all"),
        f"Targets: real-time mean at most {ONE_WORKER:g} of alone on one worker and {TWO_WORKERS:g} on two; more "
        "answers than `seq`.", "\n".join(["Missed:", "", *(f"- {line}" for line in faults)]) if faults
        else "All are reached.",
        "## Figures", "Medians of the runs; the lag of the load generator is the worst of them.", _details(data),
        "## Models and rates", _models(data), _rates(data), _beside(data), markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "disb-live.md")]
