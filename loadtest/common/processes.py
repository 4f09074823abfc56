"""Independent pieces of a simulation, shared out to processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")


def spread(work: Callable[[Given], Found], given: Sequence[Given], processes: int) -> Iterator[Found]:
    """`work` on each, in order; in this process for one. A process takes one at a time: `work` must pickle."""
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
