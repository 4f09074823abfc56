"""The results of a batch and of a call, and the interface of an object that waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.contract.specs import Array

Times = tuple[int, int, int]  # nanoseconds of input, model and output


@dataclass(slots=True, eq=False)
class FinishedBatch:
    """A batch of `size` rows that has run. `arrays`: one [rows, ...] per output in declared order, without padding.

    `times`: of rows that have been in several batches, those of all. `texts` and `answered` are the codecs' own: what
    they, and each front, made of all rows at once, because the answers of a batch are wanted together.
    """

    arrays: list[Array]
    ended: int = 0
    times: Times = (0, 0, 0)
    size: int = 0
    texts: list[bytes] | None = None
    answered: dict[object, FinishedBatch] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Answer:
    """What a lease's run gives: one array per output in declared order, `rows` leading; times in nanoseconds.

    `queue_ns` is what passed from submission to the end of the batch but for `times`: waiting, and handing over. Rows
    that ran in several batches: both are the slowest row's, `batch` is the largest. Where the answer is one row of a
    batch as it is, `finished` is that batch and `row` its place there; its `arrays` are then made when `outputs` is
    asked for. `lengths`: of a model with axes of its outputs' own, how long each row is along them; the arrays are as
    long as the longest, with zeros behind the others.
    """

    arrays: list[Array] | None
    queue_ns: int
    times: Times
    batch: int
    finished: FinishedBatch | None = None
    row: int = 0
    lengths: Sequence[int] | None = None

    @property
    def outputs(self) -> list[Array]:
        arrays = self.arrays
        if arrays is None:
            assert self.finished is not None  # one of the two is given
            row = self.row
            arrays = self.arrays = [array[row : row + 1] for array in self.finished.arrays]
        return arrays


class Waiter(Protocol):
    """Who waits for an answer, on the event loop: an asyncio.Future is one, and may have been cancelled."""

    def set_result(self, answer: Answer, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...
