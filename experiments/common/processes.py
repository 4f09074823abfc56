"""Runs independent parts of a simulation in several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")


def spread(
    work: Callable[[Given], Found], given: Sequence[Given], processes: int = os.cpu_count() or 1
) -> Iterator[Found]:
    """Yield `work` of each in order, computed in this process if `processes` is 1. `work` must pickle."""
    if processes <= 1:
        yield from map(work, given)
        return
    # Solving tables is small linear algebra: with several BLAS threads in each process it took 30 times as long on a
    # busy machine with two cores. The variables are read when a process first imports numpy.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of numpy's linear algebra
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(work, given)
