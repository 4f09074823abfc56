"""The checks of every Step that concern classes: what starts beside what, how much of it, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Klass, RowState, Step, Unit

if TYPE_CHECKING:
    from .book import Book, RowFacts

REAL, BEST = Klass
_MOST_HELD_NS = 5_000  # by any policy of the traces, and control tables
_SLOWEST = 3  # times what is predicted


class Idle:
    """Best effort is served on a device that is idle, if not at once: real-time rows that are held do not use it."""

    def __init__(self) -> None:
        self._since = 0
        self._waits = False
        self._idle_ns = 0  # while its rows waited and nothing ran

    def check(self, book: Book, step: Step, scheduler: Scheduler, now: int) -> None:
        if self._waits:
            self._idle_ns += now - self._since
        waiting = [facts for rows in book.waiting.values() for facts in rows if facts.entry.call.klass is BEST]
        able = bool(book._with_room(waiting)) and not book.units
        if any(unit.klass is BEST for unit in step.start) or not waiting:
            self._idle_ns = 0
        self._since, self._waits = now, able
        times = [
            time for program in book.programs.values() for stage in program.stages for time in stage.profile.batch_ns
        ]
        unknown = any(not stage.profile.batch_ns for program in book.programs.values() for stage in program.stages)
        slowest = max(_SLOWEST * max(times, default=0), book.device.classes.budget_ns if unknown else 0)
        assert self._idle_ns <= _MOST_HELD_NS + 10 * slowest, "best effort starves on an idle device"
        assert not able or not book.eager or step.held, "best effort waits, and nothing runs"


def check_refusal(book: Book, rows: int, program: int, deadline: int, scheduler: Scheduler, now: int) -> None:
    """A real-time call is refused for its deadline because of real-time work or of its own, never of best effort."""
    state = scheduler.states[program]
    waiting = [facts for facts_of in book.waiting.values() for facts in facts_of]
    others = any(facts.entry.call.klass is REAL for facts in waiting)
    others |= any(unit.klass is REAL for unit in book.units.values())
    assert others or rows > state.program.max_batch or now + state.estimates.time(rows) > deadline


def check_classes(book: Book, step: Step, scheduler: Scheduler, now: int) -> None:
    """Of a Step whose units the Book has noted."""
    theirs = [unit for unit in book.units.values() if unit.klass is BEST]
    assert list(scheduler._share.units.values()) == theirs
    workers = book.device.workers
    if min(len(workers), book.device.max_running) > 1:
        assert len({unit.worker for unit in theirs}) < min(len(workers), book.device.max_running), "none is kept"
    started = [unit for unit in step.start if unit.klass is BEST]
    if started:
        _check_realtime_goes_first(book, started)
        _check_sum(book, started[-1], theirs)
    _check_budget(book, theirs, now)


def _check_realtime_goes_first(book: Book, started: list[Unit]) -> None:
    waiting = [facts for waiting in book.waiting.values() for facts in waiting if facts.entry.call.klass is not BEST]
    beside = [unit for unit in book.units.values() if unit.klass is not BEST]
    assert not (_could_start(book, waiting) and book.eager), "a real-time row waits while a best-effort unit starts"
    for unit in started:
        for other in beside:
            slower = book.pairs.get((other.program, unit.program))
            assert slower is not None, "a pair that was not measured"
            assert slower <= book.device.classes.slowdown


def _check_sum(book: Book, started: Unit, theirs: list[Unit]) -> None:
    """All that run beside a real-time unit slow it by no more than the bound."""
    first = {unit.worker: unit.program for unit in reversed(theirs)} | {started.worker: started.program}
    for program in {unit.program for unit in book.units.values() if unit.klass is not BEST}:
        assert sum(book.pairs[program, other] for other in first.values()) <= book.device.classes.slowdown


def _could_start(book: Book, waiting: list[RowFacts]) -> list[RowFacts]:
    """Rows of a key of which at least one has room."""
    return [facts for facts in book._with_room(waiting) if facts.state is RowState.WAITING]


def _check_budget(book: Book, theirs: list[Unit], now: int) -> None:
    """What was handed over is predicted to take at most the budget, unless it is one unit: of one row or unknown time.

    Of several stages or steps what is left of the running one, or a longer one that its worker will begin by itself.
    Where units are late, not checked for stages and recalled units, nor where others are behind: the scheduler predicts
    those to be further than they are.
    """
    if not book.exact and len({unit.worker for unit in theirs}) < len(theirs):
        return
    if not all(unit.forecast.predicted for unit in theirs):
        assert len(theirs) == 1, "beside a unit of unknown time"
        return
    left = 0
    for unit in theirs:
        if unit.course.steps > 1:
            made, began = book.made.get(unit.id, (0, now))
            running, *later = book.times[unit.id][made:]
            if book.exact or not (unit.forecast.times or unit.course.recalled):
                left += max(0, running - (now - began), *(() if unit.course.recalled else later))
        else:
            left += max(0, unit.forecast.begins + unit.forecast.predicted - max(now, unit.forecast.begins))
    alone = len(theirs) == 1 and len(theirs[0].rows) == 1
    assert left <= book.device.classes.budget_ns or alone
