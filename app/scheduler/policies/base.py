"""What a policy sees and what it may answer.

A policy decides about one key at a time and one unit at a time: it is asked again, with one worker fewer and the rows
that are left, until it holds or nothing is idle. Asking again after each unit is what lets another key with an older
head take the next worker; a plan for all workers at once would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class KeyView:
    """One key as a policy sees it. Times in nanoseconds."""

    ready: int  # rows that wait, at least 1
    limit: int  # the most rows one unit can have now: idle workers, the model's largest batch, rows alive
    full: int  # the most rows a unit of this key ever has: what a policy that waits waits for
    oldest: int  # arrival of the row that has waited longest
    max_delay: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Start a unit of the first `rows` rows as a batch of `size` >= rows, for the reason given."""

    rows: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Start nothing of this key before `until`; None: not before something else happens."""

    until: int | None


class Policy(Protocol):
    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """`idle`: capacities of the workers that could start now, largest first, never empty."""
        ...
