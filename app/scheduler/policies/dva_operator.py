"""DVABatch's Policy II, for operators of different preferred sizes: a batch is split where smaller ones are as fast.

When a batch of b rows has completed a stage, it is split in halves if what remains takes at least as long for b rows as
for the halves one after the other, T(b) >= 2 x T(b / 2), and each half again. The parts run serially, in their order:
the first is through before the second begins. Batches are formed as by `window`.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import BasePolicy, Cut, Facts, Hold, KeyView, go
from app.scheduler.policies.window import Window


def part_of(rows: int, remaining: Sequence[int]) -> int:
    """The size of the parts that a batch is split into; its own where it is not. `remaining`: by size, from here on."""
    while 1 < rows <= len(remaining):
        half = (rows + 1) // 2
        if remaining[rows - 1] < remaining[half - 1] + remaining[rows - half - 1]:
            break
        rows = half
    return rows


class DvaOperator(BasePolicy):
    """Policy II."""

    name = "dva_operator"
    holds = True
    sees_stages = True

    def __init__(self) -> None:
        self._window = Window()

    def goes_on(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        return not facts.remaining or part_of(rows, facts.remaining[stage]) == rows

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        around, remaining = view.around, view.facts.remaining
        if around is not None and around.cell:
            return go(view, view.ready)
        if around is None or around.batch is None:
            return self._window.decide(view, idle, now)
        part = part_of(around.here, remaining[around.stage]) if remaining else around.here
        if part == around.here:
            return go(view, part)
        rows = min(part, view.limit)
        return Cut(rows, rows, go(view, rows).reason, divide=part)
