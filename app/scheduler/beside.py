"""How much real-time units of one program are slowed while a best-effort unit of another runs on another worker.

This is what decides which best-effort work may fill what real-time work leaves free (rule 2 of `gate`). REEF asks how
much of the GPU a kernel occupies; a framework is not told that, so pairs are measured instead (`starling profile A
--beside B`).

A `Beside` never changes: whoever loads or unloads a program makes another. `slowdowns` is what a scheduler is given of
it, as an input like any other (`Scheduler.pair`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from app.scheduler.estimates.pairs import Pair

_STEP = 0.05  # speeds are told apart in steps of this: they are known to a few percent


class Paired(NamedTuple):
    """A served program, as far as pairs go: the model it is of, its largest batch, and what it was measured beside."""

    model: str
    architecture: str
    max_batch: int
    pairs: Sequence[Pair] = ()


class Beside:
    """What was measured, by (real-time program, best-effort program), both by their ids; see the module's text."""

    def __init__(self, measured: Mapping[tuple[int, int], Pair] | None = None) -> None:
        measured = measured or {}
        #: By what fraction of its time a unit of the first is slowed beside one of the second: 0.02 is 2 %.
        self.slowdowns: Mapping[tuple[int, int], float] = {key: pair.slower for key, pair in measured.items()}
        #: What the second keeps meanwhile of the speed that it has alone, the mean of all sizes.
        self.speeds: Mapping[tuple[int, int], float] = {
            key: mean(time.speed for time in pair.times) for key, pair in measured.items()
        }

    @classmethod
    def of(cls, programs: Mapping[int, Paired]) -> Beside:
        """From what was measured of the models that these programs are of.

        A pair is of two architectures, and is not used for larger batches than it was measured with.
        """
        found: dict[tuple[int, int], Pair] = {}
        for realtime, own in programs.items():
            known = {(pair.model, pair.architecture): pair for pair in own.pairs}
            for best_effort, other in programs.items():
                pair = known.get((other.model, other.architecture))
                if pair and own.max_batch <= pair.max_batch and other.max_batch <= pair.beside_max_batch:
                    found[realtime, best_effort] = pair
        return cls(found)

    def __call__(self, realtime: int, best_effort: int) -> float | None:
        """By what fraction a unit of `realtime` is slowed beside one of `best_effort`; None where that is not measured.

        The worst of all sizes measured, at least 0. It is of one unit beside another: of several nothing was measured.
        """
        return self.slowdowns.get((realtime, best_effort))

    def order(self, realtime: int, candidates: Iterable[int]) -> list[int]:
        """The order in which to try best-effort programs beside a unit of `realtime`: what gets on best comes first.

        This is REEF's greedy choice. It takes for granted that all of them are within the bound on what real-time work
        may be slowed by: then what is left to win is the best-effort work done meanwhile, and the first is the one that
        keeps most of the speed it has alone. It is that share and not rows per second, for rows of different models
        are not alike. Those whose shares are as good as equal stay in the order given, so that a caller that takes
        turns among them still does; those that were not measured come last, also as given.
        """

        def rank(program: int) -> int:
            speed = self.speeds.get((realtime, program))
            return 1 if speed is None else -round(speed / _STEP)

        return sorted(candidates, key=rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Beside) and (self.slowdowns, self.speeds) == (other.slowdowns, other.speeds)
