"""A batch through all stages of its model, or all steps of its rows, for measuring and trying it out.

It is run as rows are served: one unit behind another on one worker, each launched when the one before has ended. Who
asked for it hears of one unit, with the times of all, and nothing is kept of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from app.contract import Array
from app.engine.device import Completion, Job, Ran, Report
from app.scheduler.types import Outcome


class WholeRun:
    """`launch` is given each unit's job, and whom to tell of its end."""

    def __init__(self, job: Job, report: Report, launch: Callable[[Job, Report], None]) -> None:
        activations = job.executor.activations
        assert activations is not None  # or the device would run it whole by itself
        self._activations = activations
        self._job = job
        self._report = report
        self._launch = launch
        self._last = len(job.executor.model.stages) - 1 if job.executor.steps is None else None
        self._left = list(range(len(job.slots)))  # positions of rows that have not ended
        self._rans: list[Ran] = []
        self._rows: list[tuple[list[int], list[Array]]] = []  # positions of rows that have, and their outputs
        self._measured = False  # behind which are their lengths

    def begin(self) -> None:
        self._next()

    def _next(self) -> None:
        job = self._job
        slots = [job.slots[position] for position in self._left]
        stage = len(self._rans) if self._last is not None else 0
        padding = job.size - len(job.slots)
        self._launch(replace(job, slots=slots, size=len(slots) + padding, stage=stage, steps=1), self._heard)

    def _heard(self, completion: Completion) -> None:
        ran = completion.ran
        if ran is not None:
            self._note(ran)
            if self._left:
                self._next()
                return
            ran = self._all()
            completion = replace(completion, outcome=Outcome(self._job.unit_id, None, ran.busy_ns), ran=ran)
        self._activations.let_go(self._job.slots)
        self._report(completion)

    def _note(self, ran: Ran) -> None:
        """A unit has ended well."""
        self._rans.append(ran)
        if self._last is None:
            ended = list(ran.ended)
        else:
            ended = list(range(len(self._left))) if len(self._rans) > self._last else []
        if ended:
            lengths = [] if ran.lengths is None else [ran.lengths]
            self._rows.append(([self._left[place] for place in ended], [*ran.outputs, *lengths]))
            self._measured = bool(lengths)
            ran.outputs = []
            gone = set(ended)
            self._left = [position for place, position in enumerate(self._left) if place not in gone]

    def _all(self) -> Ran:
        infer = [ran.infer_ns for ran in self._rans]
        times, step_ns = (tuple(infer), 0) if self._last is not None else ((), round(median(infer)))
        waited, out = self._rans[0].input_ns, sum(ran.output_ns for ran in self._rans)
        outputs = self._together()
        lengths = outputs.pop() if self._measured else None
        return Ran(outputs, waited, sum(infer), out, True, stages_ns=times, step_ns=step_ns, lengths=lengths)

    def _together(self) -> list[Array]:
        """The outputs of all rows in their order, with zeros behind shorter ones.

        Those with an axis of their own are as long as rows may run, so that they do not depend on the batch.
        """
        info = self._job.executor.model.info
        if not info.own_axes and self._rows[0][0] == list(range(len(self._job.slots))):
            return self._rows[0][1]
        outputs = []
        for spec, arrays in zip(info.returned, zip(*(arrays for _, arrays in self._rows), strict=True), strict=True):
            longest = list(map(max, zip(*(array.shape[1:] for array in arrays), strict=True)))
            if info.has_own_length(spec):
                longest[0] = max(longest[0], spec.bounds[0])
            whole = np.zeros((len(self._job.slots), *longest), arrays[0].dtype)
            for (positions, _), array in zip(self._rows, arrays, strict=True):
                place: tuple[Any, ...] = (positions, *map(slice, array.shape[1:]))
                whole[place] = array
            outputs.append(whole)
        return outputs
