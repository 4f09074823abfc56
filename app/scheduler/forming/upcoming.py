"""Real-time rows that cannot start now: best-effort units may run until they can.

Rows that their policy holds back may start at a known time. A best-effort unit may start if it is predicted to end by
then. A unit of one row that would end later starts once none could for `_PATIENCE` times its predicted time: a device
that only holds rows is idle.

Rows for which the device has no room wait for best-effort rows to free it, and so do not keep these from running.
"""

from __future__ import annotations

from app.scheduler.rows.ready import ReadySet

_PATIENCE = 10  # so at most a tenth of the time that real-time rows are held is lost to units that end too late


class Upcoming:
    """Of one device."""

    def __init__(self) -> None:
        self._blocked: list[ReadySet] = []  # in this step, for want of room
        self._held: dict[ReadySet, tuple[int, int]] = {}  # until when, and how many rows
        self._refused: int | None = None  # since when no best-effort unit could start because of held rows

    def open(self, now: int) -> None:
        """A new step begins."""
        if self._blocked:
            self._blocked = []
        if self._held:
            self._held = {ready: held for ready, held in self._held.items() if now < held[0]}

    def block(self, ready: ReadySet) -> None:
        self._blocked.append(ready)

    def hold(self, ready: ReadySet, until: int | None) -> None:
        if until is None:
            self._held.pop(ready, None)
        else:
            self._held[ready] = until, ready.count

    @property
    def waiting(self) -> int:
        """Real-time rows that wait and cannot start. Those that arrived since a hold began may end it: not counted."""
        held = sum(min(count, ready.count) for ready, (_, count) in self._held.items())
        return held + sum(ready.count for ready in self._blocked)

    @property
    def starts_at(self) -> int | None:
        """When the first real-time rows that are held may start."""
        return min((until for ready, (until, _) in self._held.items() if ready.count), default=None)

    def wait_until(self, time: int, now: int) -> int | None:
        """Until when a unit of this predicted time, which would end too late, has to wait; None: no longer."""
        if self._refused is None:
            self._refused = now
        until = self._refused + _PATIENCE * time
        return until if now < until else None

    def best_effort_started(self) -> None:
        self._refused = None
