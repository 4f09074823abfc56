"""What a policy sees and what it may answer.

A policy decides about one key at a time and one unit at a time: it is asked again, with one worker fewer and the rows
that are left, until it holds or nothing is idle. Asking again after each unit is what lets another key with an older
head take the next worker; a plan for all workers at once would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.scheduler.optimal.tables import ControlTables

_FOREVER = 1 << 62


@dataclass(slots=True)
class Facts:
    """What is known of one program at one stage, kept by the scheduler. Changes with ticks, not with rows."""

    preferred: int = 1  # rows: Algorithm 1 of Khan et al., at each tick; 0 behind the first stage
    control: ControlTables | None = None  # None: not solved, or not applicable to this stage
    level: int = -1  # the control table for the load as it is
    rate: float = 0.0  # rows per second, since it last changed
    scale: float = 1.0  # observed over profiled batch time
    may_hold: bool = False  # the policy, or some control table, ever holds rows back


@dataclass(slots=True)
class KeyView:
    """One key as a policy sees it. Times in nanoseconds."""

    ready: int  # rows that wait, at least 1
    limit: int  # the most rows one unit can have now: idle workers, the model's largest batch, rows alive
    full: int  # the most rows a unit of this key ever has: what a policy that waits waits for
    oldest: int  # arrival of the row that has waited longest
    max_delay: int
    room: int  # rows that may become or stay alive: Ebird's MaxInf less CurInf
    due: int  # when rows that could run now must start to end by their deadlines; far off where none has one
    free: int  # units that may start now, each on a worker of its own
    running: int  # units at work once one more has started
    facts: Facts


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


def held(view: KeyView, longest: int, now: int) -> Hold | str:
    """Hold rows for company, or the reason why no longer: the oldest has waited `longest` ns, or one is due."""
    ends = min(view.oldest + longest, view.due)
    if now < ends:
        return Hold(ends)
    return "deadline" if ends == view.due else "hold_ended"


class Policy(Protocol):
    #: It may hold rows back, whatever the control tables say.
    holds: bool

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """`idle`: capacities of the workers that could start now, largest first, never empty.

        They are what the workers can take; what the device has room for is in the view.
        """
        ...


def view_of(
    ready: int, limit: int, full: int, oldest: int = 0, max_delay: int = 0, facts: Facts | None = None
) -> KeyView:
    """A view of a device with room for all and rows without deadlines."""
    return KeyView(ready, limit, full, oldest, max_delay, _FOREVER, _FOREVER, _FOREVER, 1, facts or Facts())
