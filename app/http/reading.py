"""Calls the fronts of models (tokenizers, image decoding) on the helper threads, for many calls in one hand-over.

Tokenizing a sentence takes some 50 us. Starting a thread and getting its result takes longer than that, and meanwhile
the thread competes for the interpreter lock with the event loop and the computing worker. So the calls that arrive in
one turn of the loop, and those that arrive while all threads are busy, are read together. If the texts of a turn are
only a sentence or two, they are read on the event loop itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.contract import Array, Klass, Reader, Translated, Waiter, wait
from app.http.threads import HelperThreads, Work

_SHORT_BYTES = 512  # texts of a turn with no more bytes in all are read on the event loop: some 0.2 ms
_BATCH_BYTES = 8 << 10  # most bytes read together, unless the first call alone has more: each waits for all, some 3 ms

Queue = deque["_Unread"]


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
