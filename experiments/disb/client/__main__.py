"""Clients of several models by the rules of DISB: `python -m experiments.disb.client URL FILE`. See docs/measure.md.

Prints a table, or one JSON object. The exit status is 1 if there was no right answer, 2 for a bad option, 3 if this
client could not keep up: it prints what it measured all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.generator.run import Lagging, in_loop
from planner.commands.output import aligned

from .clients import WorkloadPlan, WorkloadResult, play
from .figures import COLUMNS, by_class, by_task
from .workload import CLASSES, Workload, read

_LONGEST_S = 1e6


def workload(chosen: argparse.Namespace) -> Workload:
    """The tasks to run, with the server's models. Raises ValueError and OSError."""
    models = {}
    for text in chosen.map:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise ValueError(f"map: expected NAME=MODEL, got {text!r}")
        models[name] = model
    found = read(chosen.file).scaled(chosen.scale).mapped(models)
    if chosen.only:
        found = found.only(chosen.only)
    if not found.tasks:
        raise ValueError(f"only: expected a class that {found.name} has, got {chosen.only!r}")
    if chosen.duration is None:
        return found
    if not 0 < chosen.duration < _LONGEST_S:
        raise ValueError(f"duration: expected seconds above 0, got {chosen.duration:g}")
    return replace(found, time_s=chosen.duration)


def plan(chosen: argparse.Namespace) -> WorkloadPlan:
    if not 0 <= chosen.warmup < _LONGEST_S:
        raise ValueError(f"warmup: expected at least 0, got {chosen.warmup:g}")
    return WorkloadPlan(
        url=chosen.url, workload=workload(chosen), classes=chosen.classes, warmup_s=chosen.warmup, seed=chosen.seed,
        lengths=chosen.lengths, timeout_s=chosen.timeout, headers=tuple(chosen.header), check=chosen.check,
        max_lag_ms=chosen.max_lag_ms,
    )  # fmt: skip


def as_json(result: WorkloadResult, doubt: str = "") -> dict[str, Any]:
    plan, time_s = result.plan, result.plan.workload.time_s
    return {
        "workload": plan.workload.name, "url": plan.url, "classes_told": plan.classes, "time_s": time_s,
        "warmup_s": plan.warmup_s, "seed": plan.seed, "lag_p50_ms": result.lag_ms(0.5),
        "lag_p99_ms": result.lag_ms(0.99), "doubt": doubt, "tasks": by_task(result.outcomes, time_s),
        "classes": by_class(result.outcomes, time_s),
    }  # fmt: skip


def as_table(result: WorkloadResult) -> str:
    """A line for each task and for each class, and the first error of each kind."""
    plan, outcomes, time_s = result.plan, result.outcomes, result.plan.workload.time_s
    names = {"none": "no classes are sent", "header": "classes as X-Class", "priority": "classes as priority 1 and 2"}
    lines = [["task", "class", *(title for title, _, _ in COLUMNS)]]
    lines += [[found["task"], found["class"], *_cells(found)] for found in by_task(outcomes, time_s)]
    lines += [[f"all {klass}", "", *_cells(found)] for klass, found in by_class(outcomes, time_s).items()]
    lines[-1][0] = "all"
    rows = aligned(lines, left=(0, 1))
    for one in outcomes:
        rows += [f"{one.played.task.id}: {count} x {one.examples[kind]}" for kind, count in one.errors.most_common()]
    return "\n".join(
        [
            f"{plan.workload.name} at {plan.url}: {time_s:g} s after a warm-up of {plan.warmup_s:g} s; "
            f"{names[plan.classes]}",
            "",
            *rows,
            "",
            f"latency runs from the launch; generator's lag {result.lag_ms(0.5):.3f} ms, 99 % "
            f"{result.lag_ms(0.99):.3f} ms",
        ]
    )


def _cells(found: dict[str, Any]) -> list[str]:
    return ["-" if found[name] is None else format(found[name], form) for _, name, form in COLUMNS]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.disb.client", description=__doc__)
    parser.add_argument("url", help="the server: http://host:port; any that speaks V2")
    parser.add_argument("file", type=Path, help="a workload in DISB's format")
    parser.add_argument("--scale", type=float, default=1.0, help="all rates of the workload times this [1]")
    parser.add_argument("--map", action="append", default=[], help="NAME=MODEL: the server's model for a task or model")
    parser.add_argument("--only", choices=CLASSES, help="the tasks of one class alone [both]")
    parser.add_argument("--classes", default="none", help="how they are sent: none, header (X-Class), priority [none]")
    parser.add_argument("--duration", type=float, help="seconds [the file's]")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds of load before, not counted [2]")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random [0]")
    parser.add_argument("--lengths", default="16", help="of variable axes, as of `starling bench` [16]")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, sent with each request")
    parser.add_argument("--check", default="values", help="values, or shapes: only outputs and shapes [values]")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds after which a request has failed [10]")
    parser.add_argument("--max-lag-ms", type=float, help="accept a client as late as this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    doubt = ""
    try:
        result = in_loop(play(plan(chosen)))
    except Lagging as exc:
        result, doubt = exc.result, str(exc)
    except (ValueError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 2
    print(json.dumps(as_json(result, doubt), indent=2) if chosen.json else as_table(result))
    if doubt:
        print(doubt, file=sys.stderr)
    return 3 if doubt else 0 if result.completed else 1


if __name__ == "__main__":
    sys.exit(main())
