"""A model in stages on a CPU: a unit runs one stage, of rows that may come from several batches of the stage before,
and may pass unchanged through further ones. Only the result of the last is kept.

A stage gets copies, because it may write into its arguments and the unit may have to run again. What is kept is a copy,
because a stage may return the same memory each time. So it is on a device of streams, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from app.contract import Array, Model
from app.engine.activations import Activations, Passed
from app.engine.cpu.segments import SegmentExecutor, since
from app.engine.executor import Job, Ran, Stop
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.stages.staged import passed_on


class StagedExecutor(SegmentExecutor):
    """For a model in stages. Rows of different units may be at different stages at the same time."""

    activations: Activations

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        self.activations = Activations()
        self.last = len(model.stages) - 1

    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        return self._pass_through(slots, job.size, range(job.stage, job.stage + most), stop)

    def whole(self, slots: Slots, size: int) -> Ran:
        return self._pass_through(slots, size, range(self.last + 1), None)

    def _pass_through(self, slots: Slots, size: int, stages: range, stop: Stop | None) -> Ran:
        """Rows pass through these stages. Without a `stop` none may fail."""
        begin = time.perf_counter_ns()
        rows, parts, count = padded(slots, size), self.model.stages, len(self.model.info.inputs)
        _, longest = known = self.lengths_of(rows) if self.pool.lengths else ({}, {})
        first, last = stages.start, stages.start
        passed: Sequence[torch.Tensor] = self.activations.gather(rows, first, longest)[0] if first else ()
        context = () if parts.context is None else self.activations.context(rows, longest) if first else None
        given: list[Any] = []  # the inputs and the context, once a stage takes some of them
        keywords: dict[str, Any] = {}
        times: list[int] = []
        gathered, result = begin, None
        for stage in stages:
            if stop is not None and stop.now and times:
                break
            if not given and (not stage or context is None or any(place < count for place in parts.again[stage])):
                inputs, keywords, *_ = self.batch(rows, known)
                given = parts.given(inputs) if context is None else [*inputs, *context]
                context = given[count:]
            assert context is not None
            arguments = parts.arguments(stage, passed if stage else given[:count], given or [*[None] * count, *context])
            called = time.perf_counter_ns()
            gathered = gathered if times else called
            try:
                copies = [argument.clone() for argument in arguments]
                result = parts.calls[stage](*copies, **({} if stage else keywords))
            except Exception:  # after the first: the next unit of these rows begins here, and will raise it again
                if not times or stop is None:
                    raise
                break
            times.append(time.perf_counter_ns() - called)
            last = stage
            if stop is not None:
                stop.made = len(times)
            if stage < self.last:
                passed = passed_on(result, stage, len(rows))
                self.activations.learn(stage, passed, longest, context)
        inferred = time.perf_counter_ns()
        outputs: list[Array] = []
        if last == self.last:
            outputs = self.scatter(result, len(slots), len(rows), longest)
        else:
            kept = tuple(tensor.clone() for tensor in passed)
            self.activations.commit(slots, Passed(last, kept, longest, context or ()), range(len(slots)))
        return Ran(outputs, *since(begin, gathered, inferred), stages_ns=tuple(times), steps=len(times))
