"""The output of `starling bench`: a table, or one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .peak import Try
from .plan import BenchPlan
from .run import Result
from .stats import FIGURES


def as_json(result: Result, slo_ms: float | None = None, tries: Sequence[Try] = (), doubt: str = "") -> dict[str, Any]:
    """The object that docs/measure.md describes. `doubt`: why the figures are not the server's, if they are not."""
    plan = result.plan
    mode = "find-peak" if slo_ms is not None else _mode(plan)
    found: dict[str, Any] = {
        "model": plan.model, "url": plan.url, "mode": mode, "rate": plan.mean_rate, "concurrency": plan.concurrency,
        "arrivals": None if plan.concurrency else plan.arrivals, "seed": plan.seed, "payload": plan.payload,
        "rows": plan.rows, "lengths": plan.lengths, "deadline_ms": plan.deadline_ms, "warmup_s": plan.warmup_s,
        "duration_s": plan.duration_s, "repeats": plan.repeats, "requests": result.requests,
        "completed": result.completed, "status": {str(code): count for code, count in sorted(result.status.items())},
        "errors": dict(result.errors), "error_examples": result.examples,
        "unchecked": result.unchecked, "connections": result.connections, "doubt": doubt,
        **result.figures,
        "runs": [
            {
                "seed": repeat.seed, "requests": len(repeat.intended_ns), "completed": len(repeat.completed),
                "elapsed_s": repeat.elapsed_s, "errors": dict(repeat.errors), **repeat.figures(plan.deadline_ms),
            }
            for repeat in result.repeats
        ],
    }  # fmt: skip
    if slo_ms is not None:
        found |= {"slo_ms": slo_ms, "tries": [{**asdict(tried), "kept": tried.kept} for tried in tries]}
    return found


def table(result: Result, slo_ms: float | None = None) -> str:
    """The result as a table."""
    plan = result.plan
    load = f"{plan.concurrency} in flight" if plan.concurrency else f"{plan.arrivals}, {plan.mean_rate:.1f}/s"
    lines = [
        f"{plan.model} at {plan.url}: {_mode(plan)} loop, {load}, {plan.payload}",
        f"{len(result.repeats)} x {plan.duration_s:g} s after a warm-up of {plan.warmup_s:g} s",
        "",
        f"{'':22}{'':>10}  {'± (95 %)':>9}",
    ]
    if slo_ms is not None:
        lines.insert(0, f"peak: {plan.mean_rate:.1f}/s with a 99th percentile of at most {slo_ms:g} ms")
    figures = result.figures
    for name, (title, unit) in FIGURES.items():
        value, width = figures[name], figures[f"{name}_ci95"]
        if value is not None:
            around = "" if width is None else f"{width:.{_digits(value)}f}"
            lines.append(f"{title:22}{value:10.{_digits(value)}f}  {around:>9} {unit}".rstrip())
    status = ", ".join(f"{count} x {code}" for code, count in sorted(result.status.items()))
    lines += ["", f"{result.requests} requests, {result.completed} answered rightly; status {status or 'none'}"]
    lines += [f"{count} x {result.examples[kind]}" for kind, count in result.errors.most_common()]
    if result.unchecked:
        lines.append(f"{result.unchecked} answers were not compared: too many different ones")
    if plan.concurrency:
        lines.append("closed loop: a slow server is asked less often, so these latencies hide queueing; see --rate")
    if plan.repeats == 1:
        lines.append("one run has no confidence interval; see --repeats")
    return "\n".join(lines)


def tried(one: Try) -> str:
    """One tried rate as a line."""
    p99 = "none" if one.p99_ms is None else f"{one.p99_ms:.1f} ms"
    return f"{one.rate:10.1f}/s  99 % {p99:>10}  {one.throughput:8.1f} answers/s  {one.why or 'kept'}"


def _digits(value: float) -> int:
    return 1 if value >= 100 else 2 if value >= 10 else 3


def _mode(plan: BenchPlan) -> str:
    return "closed" if plan.concurrency else "open"
