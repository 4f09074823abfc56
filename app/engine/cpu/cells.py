"""Runs a recurrent model on a CPU, step by step: a unit makes steps until a row ends or it is recalled.

Rows begin in their first unit. All rows of a unit step together, whatever step each has reached, and rows that have
made their last step leave with their outputs (Late Batching). Nothing is padded. If the worker continues by itself with
the other rows, a row that has ended may wait for others that end a few steps later, so that they leave together.

The rows' kept state does not change until the unit ends, so a failed unit can run again. If a later step fails, the
steps before it are made again and the unit ends with them. So a unit fails only with its first step, and no row loses
one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from app.contract import Array, Model
from app.engine.cpu.cell_rows import CellRow, CellRows
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import NO_BOUND, WHOLE, BatchResult, Job
from app.engine.executor import Steps
from app.engine.pool import Pool, Slots
from app.engine.tensors import indices, padded
from app.models.recurrent.cell_specs import State
from app.models.recurrent.cells import CellModel, CellStep

_MADE = "starling_steps"  # attribute of an exception: how many steps of the unit had run well


class _Ended(NamedTuple):
    """Rows that ended after `steps` steps of a unit: their positions in the unit, and in its last step."""

    rows: list[int]
    places: list[int]
    last: CellStep
    steps: int

    def chosen(self, value: torch.Tensor) -> torch.Tensor:
        """The part of a step's value that belongs to these rows. For one row a view: nothing writes to it."""
        places = self.places
        return value[places[0] : places[0] + 1] if len(places) == 1 else value.index_select(0, indices(places))


class _Made(NamedTuple):
    """The steps made by a unit: rows that ended, and the positions of the others in the unit and in the last step."""

    ended: list[_Ended]
    staying: list[int]
    places: Sequence[int]
    last: CellStep
    steps: int


class CellExecutor(CpuExecutor):
    """For a model whose `call` is a CellModel."""

    activations: CellRows

    def __init__(self, model: Model, pool: Pool, slots: int) -> None:
        super().__init__(model, pool)
        assert isinstance(model.call, CellModel)
        self._cell = model.call
        self._slots = slots
        self._varies = bool(self.pool.lengths) and any(not spec.fixed for spec in model.info.returned)
        self.activations = CellRows()
        self.steps: Steps | None = None

    def trial(self, slots: Slots, size: int) -> BatchResult:
        """Run all steps of the rows. The first trial also reserves memory for what rows read and output."""
        if self.steps is None:
            self._probe(slots)
        return super().trial(slots, size)

    def run(self, slots: Slots, size: int, stage: int = WHOLE, job: Job | None = None) -> BatchResult:
        """Make up to `job.steps` steps, or one without a job. `size` is ignored, because there is no padding.

        WHOLE: run the rows from their first step to their last, as a batch of `size`, and keep nothing.
        """
        if stage == WHOLE:
            return self._whole(slots, size)
        begin = time.perf_counter_ns()
        rows = self._begun(slots)
        most, bound = min(job.steps if job is not None else 1, *(row.limit - row.done for row in rows)), NO_BOUND
        long = True
        while True:
            try:
                return self._try_steps(slots, rows, (most, bound), job, begin, long=long)
            except Exception as exc:
                if well := getattr(exc, _MADE, 0):
                    most, bound = min(most, well), well
                elif long and most > 1:
                    long = False  # the failing step may be a later one of several made at once
                else:
                    raise

    def _try_steps(
        self, slots: Slots, rows: list[CellRow], most: tuple[int, int], job: Job | None, begin: int, *, long: bool
    ) -> BatchResult:
        """Make steps and store the result. An exception carries how many steps had run well (`_MADE`); then the rows
        are as before.

        `most`: the most steps until a row ends, and the most if rows that have ended wait for others. `long`: make
        several steps in one call of the cell if it can.
        """
        state = self.activations.state(slots)
        gathered = time.perf_counter_ns()
        made = self._steps(rows, state, most, job, long=long)
        inferred = time.perf_counter_ns()
        ended = [place for leaving in made.ended for place in leaving.rows]
        before = [row.done for row in rows]
        for row in rows:
            row.done = min(row.done + made.steps, row.limit)
        outputs: list[Array] = []
        own: Array | None = None
        if ended:
            try:
                outputs, own = self.answers(self._finish(slots, rows, ended, made.ended))
            except BaseException as exc:  # no state has been kept, so no row has made these steps
                for row, done in zip(rows, before, strict=True):
                    row.done = done
                first = made.ended[0].steps  # try again without rows that end later, then without any that end
                setattr(exc, _MADE, first if first < made.steps else first - 1)
                raise
        continues = job is not None and job.continue_without and not job.recalled and 0 < len(ended) < len(rows)
        left = [slots[place] for place in made.staying]
        self.activations.keep_state(left, made.places, made.last.state)
        if job is not None and continues:  # the job becomes a unit of the other rows, until one of these ends
            job.slots, job.size, job.steps, job.done = left, len(left), NO_BOUND, 0
        output_ns = time.perf_counter_ns() - inferred
        infer_ns = inferred - gathered
        return BatchResult(
            outputs,
            gathered - begin,
            infer_ns,
            output_ns,
            stages_ns=(infer_ns,),
            step_ns=infer_ns // made.steps,
            steps=made.steps,
            ended=tuple(ended),
            continues=continues,
            lengths=own,
        )

    def _whole(self, slots: Slots, size: int) -> BatchResult:
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows) if self.pool.lengths else ({}, {})
        inputs, keywords = self._gather(slots, rows, lengths, longest)
        gathered = time.perf_counter_ns()
        values, made = self._cell.whole(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs, own = self.answers(self._scatter(values, len(slots), size, longest))
        infer_ns = inferred - gathered
        output_ns = time.perf_counter_ns() - inferred
        return BatchResult(outputs, gathered - begin, infer_ns, output_ns, step_ns=infer_ns // made, lengths=own)

    def _begun(self, slots: Slots) -> list[CellRow]:
        """The rows in these slots. New ones begin here."""
        new = self.activations.missing(slots)
        if new:
            lengths, longest = self._lengths(new) if self.pool.lengths else ({}, {})
            inputs, keywords = self._gather(new, new, lengths, longest)
            given, own = self._cell.taken(inputs)
            begun = self._cell.begin(given, own, **keywords)
            self.activations.begin(new, begun.x, begun.state, self._cell.limits(begun, own))
        return self.activations.rows_of(slots)

    def _steps(
        self, rows: Sequence[CellRow], state: State, most: tuple[int, int], job: Job | None, *, long: bool
    ) -> _Made:
        """Make steps until a row ends, and then until the others end for which it waits. Ended rows make no more steps.

        A row waits for rows that end within `_wait` steps of it, if the job continues by itself. That saves a report.
        It does not wait for rows that the cell ends by itself, since their end is not known in advance.
        """
        until, bound = most
        ended: list[_Ended] = []
        staying = list(range(len(rows)))
        latest, made = bound, 0
        while True:
            going = [rows[place] for place in staying]
            last, made = self._make(going, state, until, job, made, long=long)
            flags = [False] * len(going) if last.ended is None else last.ended.tolist()
            over = [place for place, row in enumerate(going) if flags[place] or row.done + made == row.limit]
            left: Sequence[int] = range(len(going))
            if over:
                gone = set(over)
                left = [place for place in left if place not in gone]
                ended.append(_Ended([staying[place] for place in over], over, last, made))
                latest = min(latest, made + min(_wait(len(rows), going[place].limit) for place in over))
            staying = [staying[place] for place in left]
            until = min((rows[place].limit - rows[place].done for place in staying), default=NO_BOUND)
            waits = job is not None and job.continue_without and not job.recalled and last.ended is None
            if not (ended and waits and until <= latest):
                return _Made(ended, staying, left, last, made)
            index = indices(list(left))  # copies the state, so that rows that have ended keep that of their last step
            state = tuple(value.index_select(0, index) for value in last.state)

    def _make(
        self, rows: Sequence[CellRow], state: State, most: int, job: Job | None, made: int, *, long: bool
    ) -> tuple[CellStep, int]:
        """Make steps from number `made` up to `most`, until a row ends, the job is recalled, or, if ended rows wait,
        the job may not continue. Returns the last step, and how many have been made.

        A cell may make several steps in one call; a recall takes effect after them. Best-effort rows make only a few at
        once, because a real-time unit may be waiting.
        """
        kept, cell = self.activations, self._cell
        waits = made > 0
        at = kept.places(rows)
        if at is not None:
            at += made
        reads, hurried = kept.reads(rows), job is not None and job.best_effort
        while True:
            left = most - made
            steps = min(left, cell.longest_stride(len(rows), NO_BOUND if hurried else left)) if reads and long else 1
            try:
                stepped = cell.stride(kept.read(rows, at, made, steps), state)
            except BaseException as exc:
                setattr(exc, _MADE, made)
                raise
            state = stepped.state
            for place, y in enumerate(stepped.ys):
                if cell.keeps(place):
                    kept.write(rows, at, made, place, y)
            made += steps
            if job is not None:
                job.done = made
            ended = stepped.ended is not None and bool(stepped.ended.any())
            if ended or made == most or (job is not None and (job.recalled or (waits and not job.continue_without))):
                return stepped, made
            if at is not None:
                at += steps

    def _finish(self, slots: Slots, rows: Sequence[CellRow], ended: list[int], parts: Sequence[_Ended]) -> list[Array]:
        """The outputs of the rows at the positions `ended`, which have made their last steps."""
        over = [rows[place] for place in ended]
        steps = max(row.done for row in over)
        ys = [
            self.activations.written(over, place, steps)
            if self._cell.keeps(place)
            else _together([part.chosen(part.last.ys[place][-1]) for part in parts])
            for place in range(len(parts[0].last.ys))
        ]
        state = tuple(
            _together([part.chosen(part.last.state[place]) for part in parts])
            for place in range(len(parts[0].last.state))
        )
        values = self._cell.finished(state, ys, indices([row.done for row in over]), steps)
        _, longest = self._lengths([slots[place] for place in ended]) if self._varies else ({}, {})
        return self._scatter(values, len(over), len(over), longest)

    def _probe(self, slots: Slots) -> None:
        """Run the first step of a row, to learn what memory to reserve for what rows read and output."""
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


def _wait(rows: int, steps: int) -> int:
    """How many steps a row that has ended may wait for other rows of its unit. `steps`: that it made itself.

    At most a fifth of these, so that short rows are answered at once.
    """
    return min(4, rows // 4, steps // 5)


def _together(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
