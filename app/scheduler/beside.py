"""How much real-time units of one program are slowed while a best-effort unit of another runs on another worker.

This is what decides which best-effort work may fill what real-time work leaves free. REEF asks how much of the GPU a
kernel occupies; a framework is not told that, so pairs are measured instead (`starling profile A --beside B`).

A `Beside` never changes: whoever loads or unloads a program makes another. So it can be given to a scheduler as an
input like any other, and recorded (`to_dict`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, NamedTuple

from app.scheduler.estimates.pairs import Pair, PairTime, parse_times, worst

_STEP = 0.05  # speeds are told apart in steps of this: they are known to a few percent


class Paired(NamedTuple):
    """A served program, as far as pairs go: the model it is of, its largest batch, and what it was measured beside."""

    model: str
    architecture: str
    max_batch: int
    pairs: Sequence[Pair] = ()


class Beside:
    """Slowdowns by (real-time program, best-effort program), both by their ids; see the module's text."""

    def __init__(self, measured: Mapping[tuple[int, int], Sequence[PairTime]] | None = None) -> None:
        self._measured = {pair: tuple(times) for pair, times in (measured or {}).items() if times}
        self._worst = {pair: worst(times) for pair, times in self._measured.items()}
        self._speed = {pair: mean(time.speed for time in times) for pair, times in self._measured.items()}

    @classmethod
    def of(cls, programs: Mapping[int, Paired]) -> Beside:
        """From what was measured of the models that these programs are of.

        A pair is of two architectures, and is not used for larger batches than it was measured with.
        """
        found: dict[tuple[int, int], Sequence[PairTime]] = {}
        for realtime, own in programs.items():
            known = {(pair.model, pair.architecture): pair for pair in own.pairs}
            for best_effort, other in programs.items():
                pair = known.get((other.model, other.architecture))
                if pair and own.max_batch <= pair.max_batch and other.max_batch <= pair.beside_max_batch:
                    found[realtime, best_effort] = pair.times
        return cls(found)

    def __call__(self, realtime: int, best_effort: int, rows: int = 0, beside_rows: int = 0) -> float | None:
        """By what fraction a unit of `realtime` is slowed beside one of `best_effort`: 0.02 is 2 %. None: not measured.

        The worst of all sizes measured; of the sizes next to `rows` of the one and `beside_rows` of the other where
        these are given. At least 0. It is of one unit beside another: of several beside it nothing was measured.
        """
        pair = (realtime, best_effort)
        if not (rows or beside_rows):
            return self._worst.get(pair)
        times = self._measured.get(pair)
        if times is None:
            return None
        if rows:
            near = _next_to({time.rows for time in times}, rows)
            times = tuple(time for time in times if time.rows in near)
        if beside_rows:
            near = _next_to({time.beside_rows for time in times}, beside_rows)
            times = tuple(time for time in times if time.beside_rows in near)
        return worst(times)

    def order(self, realtime: int, candidates: Iterable[int]) -> list[int]:
        """The order in which to try best-effort programs beside a unit of `realtime`: what gets on best comes first.

        This is REEF's greedy choice. It takes for granted that all of them are within the bound on what real-time work
        may be slowed by: then what is left to win is the best-effort work done meanwhile, and the first is the one that
        keeps most of the speed it has alone. It is that share and not rows per second, for rows of different models
        are not alike. Those whose shares are as good as equal stay in the order given, so that a caller that takes
        turns among them still does; those that were not measured come last, also as given.
        """

        def rank(program: int) -> int:
            speed = self._speed.get((realtime, program))
            return 1 if speed is None else -round(speed / _STEP)

        return sorted(candidates, key=rank)

    def speed(self, realtime: int, best_effort: int) -> float | None:
        """What units of `best_effort` keep of the speed that they have alone, beside those of `realtime`."""
        return self._speed.get((realtime, best_effort))

    def __bool__(self) -> bool:
        """Whether any pair was measured."""
        return bool(self._measured)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Beside) and self._measured == other._measured

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, and `from_dict` gives an equal table back."""
        return {
            "pairs": [
                {"realtime": realtime, "best_effort": best_effort, "sizes": [time.to_dict() for time in times]}
                for (realtime, best_effort), times in sorted(self._measured.items())
            ]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Beside:
        """Raises ValueError, KeyError or TypeError for what `to_dict` did not write."""
        return cls({(one["realtime"], one["best_effort"]): parse_times(one["sizes"]) for one in data["pairs"]})


def _next_to(sizes: Iterable[int], size: int) -> list[int]:
    """The size itself where it is there, else its neighbours to both sides."""
    places = sorted(sizes)
    above = bisect_left(places, size)
    if above < len(places) and places[above] == size:
        return [size]
    return places[max(0, above - 1) : above + 1]
