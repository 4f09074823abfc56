"""A recurrent model on a CPU, step by step: a unit takes its rows on until one of them ends, or it is recalled.

Rows that have not begun do so in their first unit, all of its rows make the same steps together, whatever step each is
at, and those that have made their last one leave with their outputs (Late Batching). Nothing is padded.

Until a unit ends its rows are kept as they were, so that one which fails can run again. Where a later step fails than
the first, the steps before it are made again, and the unit ends with them: a unit fails only with its first step, and
no row has lost one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from app.contract import Array, Model
from app.engine.devices.base import MADE, NO_BOUND, WHOLE, Job, Ran, Steps
from app.engine.devices.cpu.cell_rows import CellRow, CellRows
from app.engine.devices.cpu.executor import CpuExecutor
from app.engine.devices.pool import Pool, Slots
from app.engine.devices.tensors import indices, padded
from app.models.cell_batch import Stepped
from app.models.cells import CellModel


class CellExecutor(CpuExecutor):
    """Implements devices.base.Executor, of a model whose `call` is a CellModel."""

    activations: CellRows

    def __init__(self, model: Model, pool: Pool, slots: int) -> None:
        super().__init__(model, pool)
        assert isinstance(model.call, CellModel)
        self._cell = model.call
        self._slots = slots
        self._measured = bool(model.info.own_axes)
        self._varies = bool(self.pool.lengths) and any(not spec.fixed for spec in model.info.returned)
        self.activations = CellRows()
        self.steps: Steps | None = None

    def trial(self, slots: Slots, size: int) -> Ran:
        """All steps of the rows. The first also shows what rows read and give out, for which memory is reserved."""
        if self.steps is None:
            self._see(slots)
        return super().trial(slots, size)

    def run(self, slots: Slots, size: int, stage: int = WHOLE, job: Job | None = None) -> Ran:
        """Go on with the rows for as many steps as the job has, or one. `size` means nothing: there is no padding.

        WHOLE: from their first step to their last, as a batch of `size`, and nothing is kept.
        """
        if stage == WHOLE:
            return self._whole(slots, size)
        begin = time.perf_counter_ns()
        rows = self._begun(slots)
        most = min(job.steps if job is not None else 1, *(row.limit - row.done for row in rows))
        long = True
        while True:
            try:
                return self._go(slots, rows, most, job, begin, long=long)
            except Exception as exc:
                if well := getattr(exc, MADE, 0):
                    most = well
                elif long and most > 1:
                    long = False  # it may be a later one of several at once
                else:
                    raise

    def _go(self, slots: Slots, rows: list[CellRow], most: int, job: Job | None, begin: int, *, long: bool) -> Ran:
        """Up to `most` steps, several at once where the cell can and `long` says so. What it raises tells how many of
        them had been made well (`MADE`); the rows are as they were then."""
        state = self.activations.state(slots)
        gathered = time.perf_counter_ns()
        stepped, made = self._make(rows, state, most, job, long=long)
        inferred = time.perf_counter_ns()
        flags = [False] * len(rows) if stepped.ended is None else stepped.ended.tolist()
        ended = [place for place, row in enumerate(rows) if flags[place] or row.done + made == row.limit]
        for row in rows:
            row.done += made
        outputs: list[Array] = []
        own: Array | None = None
        if ended:
            try:
                outputs, own = self._apart(self._finish(slots, rows, ended, stepped))
            except BaseException as exc:  # nobody's state has been kept, so nobody has made these steps
                for row in rows:
                    row.done -= made
                setattr(exc, MADE, made - 1)
                raise
        goes_on = job is not None and job.onward and not job.recalled and 0 < len(ended) < len(rows)
        over = set(ended)
        staying = [place for place in range(len(rows)) if place not in over] if ended else range(len(rows))
        left = [slots[place] for place in staying]
        self.activations.stand(left, staying, stepped.state)
        if job is not None and goes_on:  # as a unit of the others, to the end of the first of them
            job.slots, job.size, job.steps, job.done = left, len(left), NO_BOUND, 0
        output_ns = time.perf_counter_ns() - inferred
        infer_ns = inferred - gathered
        return Ran(
            outputs,
            gathered - begin,
            infer_ns,
            output_ns,
            stages_ns=(infer_ns,),
            step_ns=infer_ns // made,
            steps=made,
            ended=tuple(ended),
            goes_on=goes_on,
            lengths=own,
        )

    def _whole(self, slots: Slots, size: int) -> Ran:
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows) if self.pool.lengths else ({}, {})
        inputs, keywords = self._gather(slots, rows, lengths, longest)
        gathered = time.perf_counter_ns()
        values, made = self._cell.whole(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs, own = self._apart(self._scatter(values, len(slots), size, longest))
        infer_ns = inferred - gathered
        output_ns = time.perf_counter_ns() - inferred
        return Ran(outputs, gathered - begin, infer_ns, output_ns, step_ns=infer_ns // made, lengths=own)

    def _begun(self, slots: Slots) -> list[CellRow]:
        """The rows in these slots, each of which has begun now."""
        new = self.activations.missing(slots)
        if new:
            lengths, longest = self._lengths(new) if self.pool.lengths else ({}, {})
            inputs, keywords = self._gather(new, new, lengths, longest)
            given, own = self._cell.taken(inputs)
            begun = self._cell.begin(given, own, **keywords)
            self.activations.begin(new, begun.x, begun.state, self._cell.limits(begun, own))
        return self.activations.rows_of(slots)

    def _make(
        self, rows: Sequence[CellRow], state: tuple[torch.Tensor, ...], most: int, job: Job | None, *, long: bool
    ) -> tuple[Stepped, int]:
        """Up to `most` steps: until a row ends, or the job is recalled. Returns the last of them, and their number.

        A cell may make several at once, and a recall takes effect behind them. Best-effort rows make few at once,
        however soon one ends: a real-time unit may wait for them.
        """
        kept, cell = self.activations, self._cell
        at = kept.places(rows)
        reads, hurried = kept.reads(rows), job is not None and job.best_effort
        made = 0
        while True:
            left = most - made
            steps = min(left, cell.longest_stride(len(rows), NO_BOUND if hurried else left)) if reads and long else 1
            try:
                stepped = cell.stride(kept.read(rows, at, made, steps), state)
            except BaseException as exc:
                setattr(exc, MADE, made)
                raise
            state = stepped.state
            for place, y in enumerate(stepped.ys):
                if cell.keeps(place):
                    kept.write(rows, at, made, place, y)
            made += steps
            if job is not None:
                job.done = made
            ended = stepped.ended is not None and bool(stepped.ended.any())
            if ended or made == most or (job is not None and job.recalled):
                return stepped, made
            if at is not None:
                at += steps

    def _finish(self, slots: Slots, rows: Sequence[CellRow], ended: list[int], last: Stepped) -> list[Array]:
        """The outputs of the rows at these positions, which have made their last step."""
        # Of one row a view: nothing reads what the step gave out for it after this.
        chosen = partial(torch.index_select, dim=0, index=indices(ended)) if len(ended) > 1 else _nth(ended[0])
        over = [rows[place] for place in ended]
        steps = max(row.done for row in over)
        ys = [
            self.activations.written(over, place, steps) if self._cell.keeps(place) else chosen(y[-1])
            for place, y in enumerate(last.ys)
        ]
        state = tuple(map(chosen, last.state))
        values = self._cell.finished(state, ys, indices([row.done for row in over]), steps)
        _, longest = self._lengths([slots[place] for place in ended]) if self._varies else ({}, {})
        return self._scatter(values, len(over), len(over), longest)

    def _apart(self, returned: list[Array]) -> tuple[list[Array], Array | None]:
        """The outputs, and behind them the rows' lengths along axes of their own."""
        return (returned[:-1], returned[-1]) if self._measured else (returned, None)

    def _see(self, slots: Slots) -> None:
        """Run the first step of a row, and reserve memory for what rows read and give out."""
        cell, axis = self._cell, self._cell.axis
        lengths, longest = self._lengths(list(slots[:1])) if self.pool.lengths else ({}, {})
        inputs, keywords = self._gather(slots[:1], list(slots[:1]), lengths, longest)
        begun = cell.begin(*cell.taken(inputs), **keywords)
        x = None if begun.x is None else begun.x[:, 0]
        stepped = cell.step(x, begun.state)
        ys = {place: y for place, y in enumerate(stepped.ys) if cell.keeps(place)}
        self.activations.row_bytes = sum(value[:1].nbytes for value in stepped.state)
        steps = axis.most or (begun.x.shape[1] if begun.x is not None and not axis.name else 0)
        self.activations.reserve(self._slots, steps, x, ys)
        self.steps = Steps(axis.most or 0, x is None)


def _nth(place: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """One row of a batch, [1, ...], where it lies."""
    return lambda value: value[place : place + 1]
