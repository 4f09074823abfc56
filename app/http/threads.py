"""Helper threads for decoding, encoding and compression, which real-time requests get first; and what is read on them.

`FrontReader` has the fronts of models (tokenizers, image decoding) read many calls in one hand-over. Tokenizing a
sentence takes some 50 us. A thread takes longer than that to start and to return, and meanwhile competes for the
interpreter lock. So the calls that arrive in one turn of the event loop, and those that arrive while all threads are
busy, are read together. A sentence or two are read on the event loop itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from app.contract import Array, Klass, Reader, Translated, Waiter, wait

_P = ParamSpec("_P")
_T = TypeVar("_T")

_SHORT_BYTES = 512  # texts of a turn with no more bytes in all are read on the event loop: some 0.2 ms
_BATCH_BYTES = 8 << 10  # most bytes read together, unless the first call alone has more: each waits for all, some 3 ms

Queue = deque["_Unread"]


class HelperThreads:
    """Runs functions on the event loop's executor, with a limit per class. Used on the event loop.

    At most `threads` functions run at once. Best-effort requests leave one thread free, unless there is only one.
    Waiting functions start in order of class, then of arrival.
    """

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._kept = 1 if threads > 1 else 0  # free threads that best-effort requests leave alone
        self._waiting: tuple[deque[Work], ...] = (deque(), deque())  # by class

    def run(self, klass: Klass, function: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> Awaitable[_T]:
        """What the function returns or raises. Once begun it runs to its end, even if its caller has left."""
        return wait(Work(self, klass, partial(function, *args, **named)))

    def add(self, work: Work) -> None:
        """Begin this work as soon as there is a thread for it."""
        self._waiting[work.klass].append(work)
        self._begin()

    def remove(self, work: Work) -> None:
        """It has not begun, and is not needed any more."""
        self._waiting[work.klass].remove(work)

    def _begin(self) -> None:
        for queue, kept in zip(self._waiting, (0, self._kept), strict=True):
            while queue and self._free > kept:
                self._free -= 1
                work = queue.popleft()
                try:
                    running = asyncio.get_running_loop().run_in_executor(None, work.begin())
                except RuntimeError as error:  # the system starts no more threads
                    self._free += 1
                    work.failed(error)
                else:
                    running.add_done_callback(partial(self._ended, work))

    def _ended(self, work: Work, running: asyncio.Future[object]) -> None:
        self._free += 1
        if running.cancelled():  # the loop is being closed
            return
        self._begin()
        if (error := running.exception()) is None:
            work.ended(running.result())
        else:
            work.failed(error)


class Work:
    """A function for a helper thread. Implements contract.Pending."""

    def __init__(self, threads: HelperThreads, klass: Klass, function: Callable[[], object]) -> None:
        self.klass = klass
        self._threads = threads
        self._function: Callable[[], object] | None = function
        self._waiter: Waiter

    def submit(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._threads.add(self)

    def abandon(self, heir: Waiter) -> None:
        self._waiter = heir
        if self._function is not None:  # it waits for a thread
            self._threads.remove(self)
            heir.set_result(None)

    # called by HelperThreads

    def begin(self) -> Callable[[], object]:
        """There is a thread: what it is to run."""
        function, self._function = self._function, None
        assert function is not None  # it begins once
        return function

    def ended(self, value: object) -> None:
        self._waiter.set_result(value)

    def failed(self, error: BaseException) -> None:
        self._waiter.set_exception(error)


@dataclass(slots=True, eq=False)
class _Unread:
    """The inputs of one call, `size` bytes, until they are read. Implements contract.Pending."""

    reader: FrontReader
    preprocessor: Reader
    klass: Klass
    sent: Sequence[Array]
    size: int
    waiter: Waiter = field(init=False)
    queue: Queue | None = None  # while it waits there

    def submit(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.reader.add(self)

    def abandon(self, heir: Waiter) -> None:
        self.waiter = heir
        if self.queue is not None:
            self.queue.remove(self)
            self.queue = None
            heir.set_result(None)

    def read(self, rows: Translated | BaseException) -> None:
        if isinstance(rows, Translated):
            self.waiter.set_result(rows)
        else:
            self.waiter.set_exception(rows)


class FrontReader:
    """A queue per preprocessor and class of calls to be read. Used on the event loop, bounded by the bodies in memory.

    While a queue has calls, it waits for the end of the turn, and then for a thread.
    """

    def __init__(self, threads: HelperThreads) -> None:
        self._threads = threads
        self._waiting: dict[tuple[Reader, Klass], Queue] = {}

    def read(self, preprocessor: Reader, klass: Klass, sent: Sequence[Array], size: int) -> Awaitable[Translated]:
        """What `preprocessor.read` returns for these inputs, a body of `size` bytes, or raises."""
        return wait(_Unread(self, preprocessor, klass, sent, size))

    def add(self, unread: _Unread) -> None:
        key = unread.preprocessor, unread.klass
        queue = self._waiting.get(key)
        if queue is None:
            queue = self._waiting[key] = deque()
            asyncio.get_running_loop().call_soon(self._begin, *key)
        queue.append(unread)
        unread.queue = queue

    def _begin(self, preprocessor: Reader, klass: Klass) -> None:
        """Read the waiting calls here and now if they are short, else on a thread as soon as one is free."""
        queue = self._waiting[preprocessor, klass]
        if preprocessor.reads_texts and sum(one.size for one in queue) <= _SHORT_BYTES:
            batch = self.take(preprocessor, klass)
            for one, rows in zip(batch, read_each(preprocessor, [one.sent for one in batch]), strict=True):
                one.read(rows)
        else:
            self._threads.add(_Reading(self._threads, self, preprocessor, klass))

    def take(self, preprocessor: Reader, klass: Klass) -> list[_Unread]:
        """The calls to read next; none if all have left. What is left waits for another thread."""
        queue, size = self._waiting[preprocessor, klass], 0
        batch: list[_Unread] = []
        while queue and (not batch or (preprocessor.reads_texts and size + queue[0].size <= _BATCH_BYTES)):
            one = queue.popleft()
            one.queue = None
            batch.append(one)
            size += one.size
        if queue:
            self._threads.add(_Reading(self._threads, self, preprocessor, klass))
        else:
            del self._waiting[preprocessor, klass]
        return batch


class _Reading(Work):
    """Reads the calls that wait when there is a thread for it."""

    def __init__(self, threads: HelperThreads, reader: FrontReader, preprocessor: Reader, klass: Klass) -> None:
        super().__init__(threads, klass, int)
        self._reader = reader
        self._preprocessor = preprocessor
        self._batch: list[_Unread] = []

    def begin(self) -> Callable[[], object]:
        self._batch = self._reader.take(self._preprocessor, self.klass)
        return partial(read_each, self._preprocessor, [one.sent for one in self._batch])

    def ended(self, value: object) -> None:
        found: list[Translated | BaseException] = value  # type: ignore[assignment]  # of `read_each`
        for one, rows in zip(self._batch, found, strict=True):
            one.read(rows)

    def failed(self, error: BaseException) -> None:
        for one in self._batch:
            one.waiter.set_exception(error)


def read_each(preprocessor: Reader, calls: Sequence[Sequence[Array]]) -> list[Translated | BaseException]:
    """The rows of each call, or the error. If reading all at once fails, each is read alone to find the wrong ones."""
    try:
        return list(preprocessor.read(calls))
    except KeyboardInterrupt:  # the server ends
        raise
    except BaseException as error:  # tokenizers raises one that is no Exception when its Rust code fails
        return [error] if len(calls) == 1 else [one for call in calls for one in read_each(preprocessor, [call])]
