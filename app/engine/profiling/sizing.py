"""How many workers with how many threads each: candidates to measure, and which of them to suggest.

The rule: of those that leave a core to HTTP (on a GPU all do) and answer one row alone in at most twice the least time
any does, the one with the most rows per second; within 5 % of that the one with the fewest workers, and of these the
fewest threads. More workers than needed cost memory and make a model run on several threads at a time. `max_alive` is
the rows of all running units at the size with the most rows per second: the optimum of the measured curves never cuts
larger ones (`starling optimum`).

What is measured is the model alone, so that one core is left to HTTP: see `room`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

RULE = (
    "of those that leave a core to HTTP, most rows/s with one row alone in at most twice the least time; "
    "within 5 % the fewest workers"
)
_SLOWER = 2.0
_NEAR = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """`workers` units at once with `threads` each. `rows_per_s` at units of `size` rows; `single_ns`: one row alone."""

    threads: int
    workers: int
    size: int
    rows_per_s: float
    single_ns: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "workers": self.workers,
            "batch": self.size,
            "rows_per_s": round(self.rows_per_s, 2),
            "single_ms": self.single_ns / 1e6,
        }


def room(cores: int) -> int:
    """Cores that workers may take: all but one, which serves HTTP."""
    return max(1, cores - 1)


def pairs(cores: int) -> list[tuple[int, int]]:
    """(threads, workers) to compare: threads 1, 2, 4, ... and all cores, with one worker and with all that fit."""
    threads = sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})
    return [(count, workers) for count in threads for workers in sorted({1, cores // count})]


def candidate(threads: int, workers: int, single_ns: int, times: Mapping[int, int]) -> Candidate:
    """`times`: nanoseconds by size while `workers` units run."""
    size = max(times, key=lambda rows: (rows / times[rows], -rows))
    return Candidate(threads, workers, size, workers * size * 1e9 / times[size], single_ns)


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The one to suggest, see the module's text. Raises ValueError for none."""
    least = min(one.single_ns for one in candidates)
    quick = [one for one in candidates if one.single_ns <= _SLOWER * least]
    most = max(one.rows_per_s for one in quick)
    near = [one for one in quick if one.rows_per_s >= _NEAR * most]
    return min(near, key=lambda one: (one.workers, one.threads, -one.rows_per_s))


def suggestion(chosen: Candidate, max_batch: int, push_depth: int) -> dict[str, Any]:
    """The settings that follow, as a profile stores them."""
    return {
        "workers": [max_batch] * chosen.workers,
        "threads": chosen.threads,
        "max_running": chosen.workers,
        "max_alive": chosen.workers * push_depth * chosen.size,
        "rows_per_s": round(chosen.rows_per_s, 2),
        "rule": RULE,
    }


@dataclass(frozen=True, slots=True)
class Size:
    """`threads` of each worker, the workers' capacities, and rows on the device at once; None: no bound."""

    threads: int
    workers: tuple[int, ...]
    max_alive: int | None = None


def size_in(suggested: Mapping[str, Any]) -> Size | None:
    """The size that `suggestion` wrote; None for what is not as that writes it: files may be edited."""
    threads, workers, alive = suggested.get("threads"), suggested.get("workers"), suggested.get("max_alive")
    if not (_positive(threads) and isinstance(workers, list) and workers and all(map(_positive, workers))):
        return None
    return Size(cast(int, threads), tuple(workers), alive if _positive(alive) else None)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
