"""Helper threads for decoding, encoding, compression and the fronts of models. Real-time requests get them first.

A front (a tokenizer, image decoding) reads the texts of many calls in one hand-over. Tokenizing a sentence takes some
50 us. A thread takes longer than that to start and to return, and meanwhile competes for the interpreter lock. So the
calls that arrive in one turn of the event loop, and those that arrive while all threads are busy, are read together. A
sentence or two are read on the event loop itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from app.contract import Array, Klass, Reader, Translated, Waiter, wait

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SHORT_BYTES = 512  # texts of a turn with no more bytes in all are read on the event loop: some 0.2 ms
_BATCH_BYTES = 8 << 10  # most bytes read together, unless the first call alone has more: each waits for all, some 3 ms

Function = Callable[[list[Any]], Sequence[Any]]
WorkKey = tuple[Hashable, Klass]


@dataclass(slots=True, eq=False)
class Work:
    """A function for a helper thread, and the argument of one call for it. Implements contract.Pending.

    The function takes a list of arguments and returns the result of each. `joins`: it may take those of several calls
    at once. `size`: of the argument, in bytes.
    """

    threads: HelperThreads
    klass: Klass
    function: Function
    argument: Any = None
    size: int = 0
    joins: bool = False
    waiter: Waiter = field(init=False)
    queue: deque[Work] | None = None  # while it waits there

    def submit(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.threads.add(self)

    def abandon(self) -> bool:
        if self.queue is None:
            return True
        self.queue.remove(self)
        self.queue = self.argument = None  # which may be a large body
        return False


class HelperThreads:
    """Runs functions on the event loop's executor, with a limit per class. Used on the event loop.

    At most `threads` functions run at once. Best-effort requests leave one thread free, unless there is only one.
    Waiting functions start in order of class, then of arrival. Once begun they run to their end, even if their callers
    have left.
    """

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._kept = 1 if threads > 1 else 0  # free threads that best-effort requests leave alone
        self._queues: dict[WorkKey, deque[Work]] = {}  # what has not begun
        self._waiting: tuple[deque[WorkKey], ...] = (deque(), deque())  # by class: the queues that wait for a thread

    def run(self, klass: Klass, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> Awaitable[_T]:
        """What the function returns or raises."""
        return wait(Work(self, klass, _each, partial(function, *args, **named)))

    async def run_if(
        self, slow: bool, klass: Klass, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs
    ) -> _T:
        """The same; on the event loop unless it is slow."""
        return await self.run(klass, function, *args, **named) if slow else function(*args, **named)

    def read(self, reader: Reader, klass: Klass, sent: Sequence[Array], size: int) -> Awaitable[Translated]:
        """What `reader.read` returns for these inputs, a body of `size` bytes, or raises."""
        return wait(Work(self, klass, reader.read, sent, size, reader.reads_texts))

    def add(self, work: Work) -> None:
        """Begin it when there is a thread for it: at once, or what others may join at the end of the turn."""
        key = work.function if work.joins else work, work.klass
        known = key in self._queues
        work.queue = self._queues.setdefault(key, deque())
        work.queue.append(work)
        if not known and work.joins:
            asyncio.get_running_loop().call_soon(self._turn_ended, key)
        elif not known:
            self._wait(key)

    def _turn_ended(self, key: WorkKey) -> None:
        if sum(work.size for work in self._queues[key]) > _SHORT_BYTES:
            self._wait(key)
        elif batch := self._taken(key):
            _tell(batch, outcomes(batch))

    def _wait(self, key: WorkKey) -> None:
        self._waiting[key[1]].append(key)
        self._begin()

    def _begin(self) -> None:
        for waiting, kept in zip(self._waiting, (0, self._kept), strict=True):
            while waiting and self._free > kept:
                if not (batch := self._taken(waiting.popleft())):
                    continue
                self._free -= 1
                try:
                    running = asyncio.get_running_loop().run_in_executor(None, outcomes, batch)
                except RuntimeError as error:  # the system starts no more threads
                    self._free += 1
                    _tell(batch, [error] * len(batch))
                else:
                    running.add_done_callback(partial(self._ended, batch))

    def _taken(self, key: WorkKey) -> list[Work]:
        """What is to begin of a queue; none if all have left. The rest of it waits for another thread."""
        queue, size = self._queues[key], 0
        batch: list[Work] = []
        while queue and (not batch or size + queue[0].size <= _BATCH_BYTES):
            work = queue.popleft()
            work.queue = None
            batch.append(work)
            size += work.size
        if queue:
            self._waiting[key[1]].append(key)
        else:
            del self._queues[key]
        return batch

    def _ended(self, batch: Sequence[Work], running: asyncio.Future[list[Any]]) -> None:
        self._free += 1
        if not running.cancelled():  # else the loop is being closed
            self._begin()
            _tell(batch, running.result())


def _each(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]


def outcomes(batch: Sequence[Work]) -> list[Any]:
    """The result of each work, or the error. If all at once fail, each is done alone to find the wrong ones."""
    try:
        return list(batch[0].function([work.argument for work in batch]))
    except KeyboardInterrupt:  # the server ends
        raise
    except BaseException as error:  # tokenizers raises one that is no Exception when its Rust code fails
        return [error] if len(batch) == 1 else [one for work in batch for one in outcomes([work])]


def _tell(batch: Sequence[Work], found: Sequence[Any]) -> None:
    for work, outcome in zip(batch, found, strict=True):
        if isinstance(outcome, BaseException):
            work.waiter.set_exception(outcome)
        else:
            work.waiter.set_result(outcome)
