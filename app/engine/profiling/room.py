"""Which cells of an idle model to time, within a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.contract import TensorSpec
from app.engine.profiling.sampler import Cell, Sampler, at_lengths, cells, coarser, shorter
from app.models.checks.samples import most_length
from app.scheduler.estimates.profile import ModelProfile

# Times per cell, and how well it is to be known. What workers report corrects it further.
_LEAST, _MOST, _TOLERANCE = 5, 20, 0.02
_PASSES = 2  # over the lengths, which the budget must have room for: more lengths are better than a finer median
SHARE = 10  # a batch may take this part of the budget at most, or it keeps its time from warm-up


@dataclass(frozen=True, slots=True)
class Room:
    """`guess`: what is known of the model's batch times. `rows`: the lengths of the rows to measure with, by axis."""

    guess: ModelProfile
    rows: Mapping[str, int]
    budget_ns: int

    @property
    def own(self) -> int:
        """The length of the rows as they are; 0 if it is fixed."""
        return max(self.rows.values(), default=0)

    def sampler(self, at_once: Sequence[int], lengths: Sequence[Cell]) -> Sampler:
        """Of a model that is not known: sizes, alone and `at_once`, and other lengths, which take half of the time."""
        sizes = self._sizes(at_once, self.budget_ns // (2 if lengths else 1))
        return Sampler([*sizes, *lengths], least=_LEAST, most=_MOST, tolerance=_TOLERANCE)

    def rest(self, lengths: Sequence[Cell]) -> Sampler:
        """Of one that is known: a few sizes for the hand-over, and at other lengths."""
        fit = [size for size in coarser(self.guess.max_batch)[-1] if self.fits(self.guess.batch_ns[size - 1])]
        return Sampler([*cells(fit), *lengths], least=_LEAST, most=_LEAST)

    def lengths(self, inputs: Sequence[TensorSpec]) -> tuple[int, list[Cell]]:
        """The length of the rows as they are, and a few sizes at as many others as half of the budget has room for."""
        own, most = self.own, most_length(inputs, self.own)
        if most and not own:
            own = 1
        wanted: list[Cell] = []
        for lengths in shorter(most, own) if most else []:
            every = at_lengths(coarser(self.guess.max_batch)[-1], lengths)
            wanted = [cell for cell in every if self.fits(self.expected(cell))]
            if _PASSES * sum(map(self.expected, wanted)) <= self.budget_ns // 2:
                break
        return own, wanted

    def expected(self, cell: Cell) -> int:
        """Nanoseconds that a batch will take: from warm-up, in proportion to its length where rows are longer."""
        own = self.own or 1
        return self.guess.batch_ns[cell.size - 1] * cell.units * max(own, cell.length) // own

    def fits(self, batch_ns: int) -> bool:
        """Whether a batch that takes so long may be measured at all."""
        return batch_ns * SHARE <= self.budget_ns

    def _sizes(self, at_once: Sequence[int], budget_ns: int) -> list[Cell]:
        """As many sizes as there is time for, several times each; none of batches that take too long."""
        batch_ns, wanted = self.guess.batch_ns, list[Cell]()
        for sizes in coarser(self.guess.max_batch):
            wanted = cells([size for size in sizes if self.fits(batch_ns[size - 1])], at_once)
            if _LEAST * sum(cell.units * batch_ns[cell.size - 1] for cell in wanted) <= budget_ns:
                break
        return wanted
