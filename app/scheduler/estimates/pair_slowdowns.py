"""How much real-time units of one program are slowed while a best-effort unit of another runs on another worker.

This decides which best-effort work may fill what real-time work leaves free (rule 2 of `gate`). REEF asks how much of
the GPU a kernel occupies; a framework does not know that, so pairs are measured instead (`starling profile A --beside
B`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.scheduler.estimates.pairs import Pair


class Paired(NamedTuple):
    """A served program, as far as pairs go: the model it is of, its largest batch, and what it was measured beside."""

    model: str
    architecture: str
    max_batch: int
    pairs: Sequence[Pair] = ()


def slowdowns(programs: Mapping[int, Paired]) -> dict[tuple[int, int], float]:
    """By (real-time program, best-effort program): the fraction of its time by which the first is slowed, 0.02 is 2 %.

    The worst of all sizes measured, at least 0, and of one unit beside another. A pair is of two architectures, and is
    not used for larger batches than it was measured with. Pairs that were not measured are missing.
    """
    found: dict[tuple[int, int], float] = {}
    for realtime, own in programs.items():
        known = {(pair.model, pair.architecture): pair for pair in own.pairs}
        for best_effort, other in programs.items():
            pair = known.get((other.model, other.architecture))
            if pair and own.max_batch <= pair.max_batch and other.max_batch <= pair.beside_max_batch:
                found[realtime, best_effort] = pair.slower
    return found
