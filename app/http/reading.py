"""Calls the fronts of models (tokenizers, image decoding) on the helper threads, for many calls in one hand-over.

Tokenizing a sentence takes some 50 us. Starting a thread and getting its result takes longer than that, and meanwhile
the thread competes for the interpreter lock with the event loop and the computing worker. So the calls that arrive in
one turn of the loop, and those that arrive while all threads are busy, are read together. If the texts of a turn are
only a sentence or two, they are read on the event loop itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from app.contract import Array, Front, Translated
from app.http.threads import HelperThreads

_SHORT_BYTES = 512  # texts of a turn with no more bytes in all are read on the event loop: some 0.2 ms
_BATCH_BYTES = 8 << 10  # most bytes read together, unless the first call alone has more: each waits for all, some 3 ms


class _Unread(NamedTuple):
    """The inputs of one call, `size` bytes, and the future of its rows."""

    sent: Sequence[Array]
    size: int
    read: asyncio.Future[Translated]


class FrontReader:
    """A queue per front and class of calls to be read. Used on the event loop; bounded by the bodies that are held.

    While a queue has calls, one task of it waits for a thread.
    """

    def __init__(self, threads: HelperThreads) -> None:
        self._threads = threads
        self._waiting: dict[tuple[Front, bool], deque[_Unread]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, front: Front, best_effort: bool, sent: Sequence[Array], size: int) -> Translated:
        """What `front.read` returns for these inputs, a body of `size` bytes. Raises what it raises."""
        read: asyncio.Future[Translated] = asyncio.get_running_loop().create_future()
        key = front, best_effort
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            self._begin(key)
        waiting.append(_Unread(sent, size, read))
        return await read

    def _begin(self, key: tuple[Front, bool]) -> None:
        task = asyncio.get_running_loop().create_task(self._read(*key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, front: Front, best_effort: bool) -> None:
        """Read the waiting calls on a thread as soon as one is free, or here and now if they are short."""
        key = front, best_effort
        waiting = self._waiting[key]
        here = front.reads_texts and sum(one.size for one in waiting) <= _SHORT_BYTES
        if not here:
            await self._threads.acquire(best_effort)
        batch = _next_batch(waiting, front.reads_texts)
        if waiting:
            self._begin(key)
        else:
            del self._waiting[key]
        sent = [one.sent for one in batch]
        found = read_each(front, sent) if here else await self._threads.run_acquired(read_each, front, sent)
        for one, rows in zip(batch, found, strict=True):
            if one.read.done():  # its caller was cancelled
                continue
            if isinstance(rows, Translated):
                one.read.set_result(rows)
            else:
                one.read.set_exception(rows)


def _next_batch(waiting: deque[_Unread], many: bool) -> list[_Unread]:
    batch = [waiting.popleft()]
    size = batch[0].size
    while many and waiting and size + waiting[0].size <= _BATCH_BYTES:
        batch.append(waiting.popleft())
        size += batch[-1].size
    return batch


def read_each(front: Front, calls: Sequence[Sequence[Array]]) -> list[Translated | Exception]:
    """The rows of each call, or the error. If reading all at once fails, each is read alone to find the wrong ones."""
    try:
        return list(front.read(calls))
    except Exception as error:
        return [error] if len(calls) == 1 else [one for call in calls for one in read_each(front, [call])]
