"""Runs a recurrent model on a CPU by its cell. Nothing is padded.

If the worker continues by itself with the other rows, a row that has ended may wait for others that end a few steps
later, so that they leave together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from app.contract import Array, Model
from app.engine.cpu.cell_rows import CellRow, CellRows
from app.engine.cpu.executor import CpuExecutor, since
from app.engine.executor import NO_BOUND, Job, Ran, Stop
from app.engine.pool import Place, Pool, Slots, indices, padded, rows_at
from app.engine.step_slabs import FirstStep
from app.models.recurrent.cells import CellModel, CellStep
from app.scheduler.types import Klass

_BEST_EFFORT = Klass.BEST_EFFORT


class CellExecutor(CpuExecutor):
    """For a model whose `call` is a CellModel.

    If the cell has raised on every row that it was tried with, nothing is known of its steps: rows run whole.
    """

    rows: CellRows

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        assert isinstance(model.call, CellModel)
        self.cell = model.call

    def trial(self, slots: Slots, size: int) -> Ran:
        """Run all steps of the rows. The first trial also reserves memory for what rows read and output."""
        if self.steps is None:
            inputs, keywords, *_ = self.batch(slots[:1])
            first = FirstStep.of(self.cell, inputs, keywords)
            self.activations = self.rows = CellRows(self.pool.end, first)
            self.steps = first.steps
        return super().trial(slots, size)

    def whole(self, slots: Slots, size: int) -> Ran:
        begin = time.perf_counter_ns()
        inputs, keywords, _, longest = self.batch(padded(slots, size))
        gathered = time.perf_counter_ns()
        values, made = self.cell.whole(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs, own = self.answers(self.scatter(values, len(slots), size, longest))
        step_ns = None if self.steps is None else (inferred - gathered) // made
        return Ran(outputs, *since(begin, gathered, inferred), step_ns=step_ns, lengths=own)

    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        begin, bound = time.perf_counter_ns(), NO_BOUND
        new = self.rows.missing(slots)
        if new:
            inputs, keywords, *_ = self.batch(new)
            begun = self.cell.begin(inputs, **keywords)
            self.rows.begin(new, begun.x, begun.state, self.cell.limits(begun))
        while True:
            unit = _CellSteps(self, slots, most, bound, job.klass is _BEST_EFFORT, stop)
            gathered = time.perf_counter_ns()
            try:
                unit.make()
                inferred = time.perf_counter_ns()
                ended, outputs, lengths = unit.end()
                break
            except Exception:  # again without the step that failed, or the last one with which rows ended
                bound = unit.safe
                if not bound:
                    raise
        step_ns = (inferred - gathered) // unit.made
        parts = since(begin, gathered, inferred)
        return Ran(outputs, *parts, step_ns=step_ns, steps=unit.made, ended=tuple(ended), lengths=lengths)


class _CellSteps:
    """Rows that have begun make steps together, at most `bound`. What is kept of them only changes in `end`, so that
    they can make the same steps again.

    `made`: steps so far; `safe`: how many will not fail. `hurried`: few steps at once, because a real-time unit may be
    waiting.
    """

    def __init__(self, executor: CellExecutor, slots: Slots, most: int, bound: int, hurried: bool, stop: Stop) -> None:
        self._executor, self._cell, self._kept = executor, executor.cell, executor.rows
        self._slots, self._stop, self._bound, self._hurried = slots, stop, bound, hurried
        self._rows = self._kept.of(slots)
        self._most = min(most, bound, *(row.limit - row.done for row in self._rows))
        self._state = self._kept.state(self._rows)
        self.made = self.safe = 0
        #: Rows that have ended: their positions in the unit, and their places in what their last steps made.
        self._over: list[tuple[int, Place]] = []
        self._staying = list(range(len(self._rows)))  # positions of the rows that have not ended
        self._places: Sequence[int] = self._staying  # and their positions in the last step
        self._last: CellStep

    def make(self) -> None:
        """Make steps until some of the rows end, or several groups of them if they wait, or the unit is stopped."""
        rows, stop, until, latest = self._rows, self._stop, self._most, self._bound
        while True:
            going = [rows[place] for place in self._staying]
            self._until(going, until)
            last = self._last
            flags = [False] * len(going) if last.ended is None else last.ended.tolist()
            over = {at for at, row in enumerate(going) if flags[at] or row.done + self.made == row.limit}
            if over:
                made = (*last.state, *(y[-1] for place, y in enumerate(last.ys) if not self._cell.keeps(place)))
                own = _copied(made, sorted(over))
                self._over += [(self._staying[at], (own, number)) for number, at in enumerate(sorted(over))]
                latest = min(latest, self.made + min(_wait(len(rows), going[at].limit) for at in over))
            self._places = [at for at in range(len(going)) if at not in over]
            self._staying = [self._staying[at] for at in self._places]
            until = min((rows[place].limit - rows[place].done for place in self._staying), default=NO_BOUND)
            # they may wait while nobody waits for the unit, and if it is known when others end
            wait = self._over and last.ended is None and not (stop.at_next_row or stop.now)
            if not wait or until > latest:
                return
            self._state = _copied(last.state, self._places)

    def _until(self, rows: Sequence[CellRow], most: int) -> None:
        """Make steps of these rows up to number `most`, until a row ends or the unit is stopped.

        A cell may make several steps in one call; a stop takes effect after them.
        """
        kept, cell, stop, waits = self._kept, self._cell, self._stop, bool(self._over)
        at = kept.steps_at(rows)
        if at is not None:
            at += self.made
        while True:
            left, steps = most - self.made, 1
            if kept.reads:
                steps = min(left, cell.longest_stride(len(rows), NO_BOUND if self._hurried else left))
            self.safe = self.made or int(steps > 1)
            stepped = cell.stride(kept.read(rows, at, self.made, steps), self._state)
            self._state = stepped.state
            for place, y in enumerate(stepped.ys):
                if cell.keeps(place):
                    kept.write(rows, at, self.made, place, y)
            self.made += steps
            stop.made = self.made
            self._last = stepped
            ended = stepped.ended is not None and bool(stepped.ended.any())
            if ended or self.made == most or stop.now or (waits and stop.at_next_row):
                return
            if at is not None:
                at += steps

    def end(self) -> tuple[list[int], list[Array], Array | None]:
        """Keep what has become of the rows. Returns the positions of those that have ended, their outputs, and
        Ran.lengths."""
        self.safe = self.made - 1
        ended = [position for position, _ in self._over]
        outputs, lengths = self._outputs(ended) if ended else ([], None)
        self._kept.keep_state([self._rows[place] for place in self._staying], _copied(self._last.state, self._places))
        for row in self._rows:
            row.done = min(row.done + self.made, row.limit)
        return ended, outputs, lengths

    def _outputs(self, ended: Sequence[int]) -> tuple[list[Array], Array | None]:
        """The outputs of the rows at these positions, and Ran.lengths."""
        cell, over = self._cell, [self._rows[place] for place in ended]
        made = [min(row.done + self.made, row.limit) for row in over]
        values = rows_at([place for _, place in self._over])
        count = len(self._state)
        last = iter(values[count:])
        ys = [
            self._kept.written(over, place, made) if cell.keeps(place) else next(last)
            for place in range(len(self._last.ys))
        ]
        values = cell.finished(tuple(values[:count]), ys, indices(made), max(made))
        executor, slots = self._executor, [self._slots[place] for place in ended]
        _, longest = executor.lengths_of(slots)
        return executor.answers(executor.scatter(values, len(slots), len(slots), longest))


def _copied(values: Sequence[torch.Tensor], places: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """The rows at these places: a cell may write into what it is given, and return the same memory again."""
    index = indices(places)
    return tuple(value.index_select(0, index) for value in values)


def _wait(rows: int, steps: int) -> int:
    """How many steps a row that has ended may wait for other rows of its unit. `steps`: that it made itself.

    At most a fifth of these, so that short rows are answered at once.
    """
    return min(4, rows // 4, steps // 5)
