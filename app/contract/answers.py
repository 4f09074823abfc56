"""The results of a batch and of a call, and how a coroutine waits for one without an asyncio future."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, NamedTuple, Protocol

from app.contract.specs import Array

Times = tuple[int, int, int]  # nanoseconds of input, model and output


@dataclass(slots=True, eq=False)
class FinishedBatch:
    """A batch of `size` rows that has run. `arrays`: one [rows, ...] per output in declared order, without padding.

    `times`: if rows have been in several batches, the sum of all. `reason`: why it was formed at that moment. `texts`
    and `answered` are caches of the codecs: the encoded rows, and what each front made of all rows at once, because the
    calls of a batch are answered together.
    """

    arrays: list[Array]
    ended: int = 0
    times: Times = (0, 0, 0)
    size: int = 0
    worker: int = 0
    reason: str = ""
    texts: list[bytes] | None = None
    answered: dict[object, FinishedBatch] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Answer:
    """The result of a call: one array [rows, ...] per output in declared order; times in nanoseconds.

    `queue_ns`: the time from submission to the end of the batch, without `times`: waiting and handover. `batch`: rows
    of the batch; `worker`, `reason`: see FinishedBatch. If rows ended in several batches, `batches` is their number,
    `batch` is the largest, and the rest is that of the slowest. If the answer is one row of a batch, `finished` is the
    batch and `row` its index; `outputs` then makes the arrays when it is first read. `lengths`: for a model whose
    outputs have axes of their own (ModelInfo.own_axes), the length of each row along them; the arrays are as long as
    the longest row, padded with zeros.
    """

    arrays: list[Array] | None
    queue_ns: int
    times: Times
    batch: int
    finished: FinishedBatch | None = None
    row: int = 0
    lengths: Sequence[int] | None = None
    worker: int = 0
    reason: str = ""
    batches: int = 1

    @property
    def outputs(self) -> list[Array]:
        arrays = self.arrays
        if arrays is None:
            assert self.finished is not None  # one of the two is given
            row = self.row
            arrays = self.arrays = [array[row : row + 1] for array in self.finished.arrays]
        return arrays


class GeneratedText(NamedTuple):
    """A text or a piece of one. `reason`: why it ended with it, "stop" or "length"; "": it has not.

    `read` and `written`: tokens of the prompt, and of the text so far.
    """

    text: str
    reason: str
    read: int
    written: int


class Waiter(Protocol):
    """Receives one value or error, on the event loop. An asyncio.Future is one."""

    def set_result(self, value: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Pending(Protocol):
    """What takes a while: the answer of a lease, the value of a function on a thread. Each is waited for once."""

    def submit(self, waiter: Waiter) -> None:
        """Begin; the waiter gets what came of it, perhaps before this returns."""

    def abandon(self) -> bool:
        """Nobody needs it any more. Returns whether it still uses what it was given: then the waiter hears its end."""


@coroutine
def wait(pending: Pending) -> Generator[Pending, Any, Any]:
    """Wait for it, in a coroutine that is run by whoever takes what it yields, submits it and resumes the coroutine.

    Resuming by hand costs a fraction of a microsecond; a task and a future cost as much as all of a small call.
    """
    return (yield pending)


def awaited(pending: Pending) -> asyncio.Future[Any]:
    """The same for a task of asyncio: begin it; the future is its waiter."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending.submit(future)
    return future
