"""How much the units of two models slow each other, measured side by side, and its file format.

    {"model": "encoder", "architecture": "8c1f0a", "made": "2026-01-01T00:00:00+00:00",
     "sizes": [{"rows": 1, "beside_rows": 32, "alone_ms": 4.6, "beside_ms": 4.7, "slower": 0.021}]}

A batch of `rows` takes `alone_ms` alone and `beside_ms` beside batches of `beside_rows` of `encoder`; `slower` is the
median slowdown. Unknown keys of a pair are kept unchanged. What is measured and why: docs/theory/estimates.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

#: (first, second) -> by what fraction of its time a unit of the first program is slowed by one of the second beside it.
PairSlowdowns = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class PairTime:
    """The times of a unit of `rows` beside units of `beside_rows`, see the module's text."""

    rows: Annotated[int, Field(ge=1)]
    beside_rows: Annotated[int, Field(ge=1)]
    alone_ms: float
    beside_ms: float
    slower: Annotated[float, Field(ge=-1)]


_SIZES = TypeAdapter(Annotated[tuple[PairTime, ...], Field(min_length=1)], config=ConfigDict(extra="forbid"))


@dataclass(frozen=True, slots=True)
class Pair:
    """How units of some model are slowed by units of `model`. `architecture`: as in the key of that model's profile."""

    model: str
    architecture: str
    sizes: tuple[PairTime, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)  # unknown keys

    @property
    def max_batch(self) -> int:
        """The largest unit that was measured beside the other."""
        return max(time.rows for time in self.sizes)

    @property
    def beside_max_batch(self) -> int:
        """The largest unit of the other."""
        return max(time.beside_rows for time in self.sizes)

    @property
    def slower(self) -> float:
        """The worst slowdown of all sizes; at least 0, because a negative one can only be noise."""
        return max(0.0, *(time.slower for time in self.sizes))

    def to_dict(self) -> dict[str, Any]:
        """The dict of the format. `parse_pair` gives an equal pair back."""
        sizes = [asdict(time) for time in self.sizes]
        return {**self.extra, "model": self.model, "architecture": self.architecture, "sizes": sizes}


def parse_pair(data: Any) -> Pair:
    """A pair from its dict. Raises ValueError for anything else."""
    try:
        extra = dict(data)
        sizes = _SIZES.validate_python(extra.pop("sizes"))
        return Pair(extra.pop("model"), extra.pop("architecture"), sizes, extra)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"beside: expected pairs as `starling profile --beside` writes them, got {data!r}") from None


class Paired(NamedTuple):
    """What `slowdowns` needs of a served program: its model, its largest batch, and its measured pairs."""

    model: str
    architecture: str
    max_batch: int
    pairs: Sequence[Pair] = ()


def slowdowns(programs: Mapping[int, Paired]) -> PairSlowdowns:
    """By (real-time program, best-effort program): the fraction of its time by which the first is slowed, 0.02 is 2 %.

    The worst of all measured sizes, at least 0, for one unit beside another. A pair belongs to two architectures, and
    is not used for larger batches than were measured. Pairs that were not measured are missing.
    """
    found: dict[tuple[int, int], float] = {}
    for realtime, own in programs.items():
        known = {(pair.model, pair.architecture): pair for pair in own.pairs}
        for best_effort, other in programs.items():
            pair = known.get((other.model, other.architecture))
            if pair and own.max_batch <= pair.max_batch and other.max_batch <= pair.beside_max_batch:
                found[realtime, best_effort] = pair.slower
    return found
