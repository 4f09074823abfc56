"""What the pages of the experiments share: facts of the run, tables, work spread over processes."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loadtest.bench import machine
from loadtest.bench.load import ROOT
from loadtest.bench.report import row

DOCS = ROOT / "docs" / "bench"
Given = TypeVar("Given")
Found = TypeVar("Found")


def facts(command: str) -> dict[str, str]:
    """Command, date and machine. Call before the work: the load average is that of this moment."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"command": f"`{command}`", "date": date, **machine.describe()}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([row(tuple(headings)), row(("---",) * len(headings)), *(row(tuple(cells)) for cells in rows)])


def write(name: str, folder: Path, parts: Sequence[str], data: dict[str, Any], known: dict[str, str]) -> list[Path]:
    """`name`.md from its parts, the facts at the end, and `name`.json from `data`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page, store = folder / f"{name}.md", folder / f"{name}.json"
    told = "\n".join(f"- {key}: {value}" for key, value in known.items())
    page.write_text("\n\n".join([*(part.strip() for part in parts), told]) + "\n", encoding="utf-8")
    text = json.dumps({"facts": known, **data}, indent=1, ensure_ascii=False, default=_plain)
    store.write_text(text + "\n", encoding="utf-8")
    return [page, store]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"expected a value that JSON has, got {type(value).__name__}")


def spread(work: Callable[[Given], Found], given: Sequence[Given], processes: int) -> Iterator[Found]:
    """`work` on each, in order; in this process for one. A process each at a time: work must pickle."""
    if processes <= 1:
        yield from map(work, given)
        return
    # Solving tables is small linear algebra: with threads of its own in each process it took 30 times as long on a busy
    # machine of two cores. The variables are read when a process first imports numpy.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of numpy's linear algebra
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(work, given)


def ms(value: float) -> str:
    """Milliseconds with three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values; 0 for one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
