"""Options of `starling bench --workload` to the plan of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .workload import CLASSES, Klass, read
from .workload_run import WorkloadPlan

_LONGEST_S = 1e6


def planned(
    file: Path,
    scale: float,
    maps: Sequence[str],
    only: str,
    duration_s: float | None,
    *,
    warmup_s: float,
    **options: Any,
) -> WorkloadPlan:
    """The plan. `maps` are NAME=MODEL; `only`: a class, or empty for both; `options`: other fields of
    the plan. Raises ValueError and OSError."""
    models = {}
    for text in maps:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise ValueError(f"map: expected NAME=MODEL, got {text!r}")
        models[name] = model
    workload = read(file).scaled(scale).mapped(models)
    if only:
        workload = workload.only(_class(only))
    if not workload.tasks:
        raise ValueError(f"only: expected a class that {workload.name} has, got {only!r}")
    if duration_s is not None:
        if not 0 < duration_s < _LONGEST_S:
            raise ValueError(f"duration: expected seconds above 0, got {duration_s:g}")
        workload = replace(workload, time_s=duration_s)
    if not 0 <= warmup_s < _LONGEST_S:
        raise ValueError(f"warmup: expected at least 0, got {warmup_s:g}")
    return WorkloadPlan(workload=workload, warmup_s=warmup_s, **options)


def _class(text: str) -> Klass:
    for known in CLASSES:
        if text == known:
            return known
    raise ValueError(f"only: expected {' or '.join(CLASSES)}, got {text!r}")
