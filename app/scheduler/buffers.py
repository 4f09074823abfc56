"""Buffer pairs between stages, and which executor may run when (DVABatch, section 6): a pure table.

Each stage has one executor. It reads an input buffer and writes an output buffer, which is the input of the next stage;
a pair is one buffer at each boundary, from the first stage's input to the last one's output. An executor may run a
batch only with a legitimate pair. A buffer that is invalid may be written, but not yet be read.

What makes one pair run the stages one after another, and several pairs run them as a pipeline, is when a stage's input
becomes available again: not when it has been read, but when the executor behind has another pair to go on with.

The paper does not say who releases the last stage's input, behind which there is no executor. Here it does so itself
when it completes: "the last stage executor always re-enters active state directly".
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Buffer(StrEnum):
    AVAILABLE = "available"  # no executor uses it, and it may be read
    INVALID = "invalid"  # it may be written, but not be read
    READING = "in-reading"
    WRITING = "in-writing"


class Executor(StrEnum):
    INACTIVE = "inactive"  # it has no legitimate pair
    ACTIVE = "active"  # it has one, and waits for a batch
    CHECKING = "checking"  # it has a batch, whose pair is not legitimate yet
    WORKING = "working"


class Transition(NamedTuple):
    """One way for an executor to change. The buffers are those of the batch's pair, before and after."""

    event: str
    source: Executor
    target: Executor
    when: str


#: All ways for an executor to change.
TRANSITIONS = (
    Transition("obtain", Executor.INACTIVE, Executor.ACTIVE, "some pair is legitimate"),
    Transition("pull", Executor.ACTIVE, Executor.WORKING, "the batch's pair is legitimate"),
    Transition("pull", Executor.ACTIVE, Executor.CHECKING, "the batch's pair is not legitimate"),
    Transition("check", Executor.CHECKING, Executor.WORKING, "the batch's pair has become legitimate"),
    Transition("complete", Executor.WORKING, Executor.ACTIVE, "another pair is legitimate, or it is the last stage"),
    Transition("complete", Executor.WORKING, Executor.INACTIVE, "no pair is legitimate"),
)
#: What happens to the input and the output buffer of the batch's pair. The output is restored to what it was before.
BUFFERS = {
    "begin": ("available -> in-reading", "available or invalid -> in-writing"),
    "complete": ("in-reading -> invalid, at the last stage available", "in-writing -> as before"),
    "release": ("invalid -> available, once the executor behind is active again", ""),
}


def legitimate(source: Buffer, target: Buffer) -> bool:
    """Whether an executor may read `source` and write `target`."""
    return source is Buffer.AVAILABLE and target in (Buffer.AVAILABLE, Buffer.INVALID)


class Pipeline:
    """The executors of `stages` stages and their `pairs` of buffers, as the table says.

    `executors[i]`; `buffers[pair][i]` is read by executor i and written by executor i - 1.
    """

    def __init__(self, stages: int, pairs: int) -> None:
        self.executors = [Executor.ACTIVE] * stages
        self.buffers = [[Buffer.AVAILABLE] * (stages + 1) for _ in range(pairs)]
        self._pair = [-1] * stages  # of the batch that each executor has
        self._before = [Buffer.AVAILABLE] * stages  # state of the output that it writes
        self._owed: list[list[int]] = [[] for _ in range(stages)]  # pairs read, not yet released to the one before

    def pull(self, executor: int, pair: int) -> None:
        """An active executor takes a batch that lies in this pair."""
        if self.executors[executor] is not Executor.ACTIVE:
            raise ValueError(f"pull: expected an active executor, got {self.executors[executor].value}")
        self._pair[executor] = pair
        if self._legitimate(executor, pair):
            self._begin(executor)
        else:
            self.executors[executor] = Executor.CHECKING

    def complete(self, executor: int) -> None:
        """A working executor has run its batch, whose rows lie in the pair's next buffer now."""
        if self.executors[executor] is not Executor.WORKING:
            raise ValueError(f"complete: expected a working executor, got {self.executors[executor].value}")
        buffers = self.buffers[self._pair[executor]]
        last = executor == len(self.executors) - 1
        buffers[executor] = Buffer.AVAILABLE if last else Buffer.INVALID
        buffers[executor + 1] = self._before[executor]
        self._owed[executor].append(self._pair[executor])
        self.executors[executor] = Executor.INACTIVE
        self._settle()

    def _begin(self, executor: int) -> None:
        buffers = self.buffers[self._pair[executor]]
        self._before[executor] = buffers[executor + 1]
        buffers[executor], buffers[executor + 1] = Buffer.READING, Buffer.WRITING
        self.executors[executor] = Executor.WORKING

    def _legitimate(self, executor: int, pair: int) -> bool:
        return legitimate(self.buffers[pair][executor], self.buffers[pair][executor + 1])

    def _settle(self) -> None:
        """All changes that follow without a batch: from the last stage on, as each may release the one before."""
        changed = True
        while changed:
            changed = False
            for executor in reversed(range(len(self.executors))):
                state = self.executors[executor]
                if state is Executor.CHECKING and self._legitimate(executor, self._pair[executor]):
                    self._begin(executor)
                    changed = True
                elif state is Executor.INACTIVE and any(
                    self._legitimate(executor, pair) for pair in range(len(self.buffers))
                ):
                    self.executors[executor] = Executor.ACTIVE
                    self._release(executor)
                    changed = True

    def _release(self, executor: int) -> None:
        """An executor that is active again lets the one before use the pairs that it has read."""
        for pair in self._owed[executor]:
            if executor and self.buffers[pair][executor - 1] is Buffer.WRITING:
                self._before[executor - 2] = Buffer.AVAILABLE  # by the stage before that: it is available afterwards
            elif executor:
                self.buffers[pair][executor - 1] = Buffer.AVAILABLE
        self._owed[executor].clear()
