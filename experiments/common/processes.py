"""Runs independent parts of a simulation in several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Found = TypeVar("Found")

PROCESSES = os.cpu_count() or 1


def spread(
    work: Callable[[Given], Found], given: Sequence[Given], say: Callable[[str], object] = lambda text: None
) -> list[Found]:
    """`work` of each in order, computed in this process if there is to be one only. `work` must pickle.

    `say` is called with a line for each that is done.
    """
    found: list[Found] = []

    def note(one: Found) -> None:
        found.append(one)
        say(f"{work.__name__}: {len(found)} of {len(given)}")

    if PROCESSES <= 1:
        for one in map(work, given):
            note(one)
        return found
    # Solving tables is small linear algebra: with several BLAS threads in each process it took 30 times as long on a
    # busy machine with two cores. The variables are read when a process first imports numpy.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of numpy's linear algebra
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        for one in pool.map(work, given):
            note(one)
    return found
