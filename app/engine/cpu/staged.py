"""A model in stages on a CPU: a unit runs one stage, of rows that may come from several batches of the stage before,
and may pass unchanged through further ones. Only the result of the last is kept.

A failed unit runs again, so a stage must not write into its arguments. `trial` detects a stage that does, and from then
on it gets copies. One may do so for some rows only: after a failure the stages before run again, from the rows' slots.
A stage that returns the same memory each time has its results copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from app.contract import Array, Model
from app.engine.activations import Activations, Passed
from app.engine.cpu.segments import SegmentExecutor, since
from app.engine.executor import Job, Ran, Stop
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.stages.staged import passed_on

_TWICE = 2  # rows: up to here a trial runs each stage twice, to see whether it returns the same memory again


#: (stage, arguments, keywords) -> what the stage returns, and its nanoseconds.
_Call = Callable[[int, Sequence[Any], Mapping[str, Any]], tuple[Any, int]]


class StagedExecutor(SegmentExecutor):
    """For a model in stages. Rows of different units may be at different stages at the same time."""

    activations: Activations

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        self.activations = Activations()
        self.last = len(model.stages) - 1
        self._writes = [False] * len(model.stages)  # the stage writes into its arguments
        self._reuses = [False] * len(model.stages)  # it returns the same memory each time

    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        return self._pass_through(slots, job.size, range(job.stage, job.stage + most), stop, self.call)

    def whole(self, slots: Slots, size: int) -> Ran:
        return self._whole(slots, size, self.call)

    def trial(self, slots: Slots, size: int) -> Ran:
        """All stages. Also detects one that writes into its arguments, or that returns the same memory each time."""
        return self._whole(slots, size, self._try)

    def _whole(self, slots: Slots, size: int, call: _Call) -> Ran:
        ran = self._pass_through(slots, size, range(self.last + 1), None, call)
        ran.infer_ns = sum(ran.stages_ns)  # a trial does more than compute
        return ran

    def _pass_through(self, slots: Slots, size: int, stages: range, stop: Stop | None, call: _Call) -> Ran:
        """Rows pass through these stages. Without a `stop` none may fail."""
        begin = time.perf_counter_ns()
        rows, parts, count = padded(slots, size), self.model.stages, len(self.model.info.inputs)
        _, longest = known = self.lengths_of(rows) if self.pool.lengths else ({}, {})
        again = (
            stages.start if stages.start and self.activations.missing(slots) else 0
        )  # stages that run again, see `note_failure`
        first = stages.start - again
        passed: Sequence[torch.Tensor] = self.activations.gather(rows, first, longest)[0] if first else ()
        context = () if parts.context is None else self.activations.context(rows, longest) if first else None
        given: list[Any] = []  # the inputs and the context, once a stage takes some of them
        times: list[int] = []
        keywords: dict[str, Any] = {}
        gathered, result, sound = begin, None, True
        for stage in range(first, stages.stop):
            if stop is not None and stop.now and len(times) > again:
                break
            if not given and (not stage or context is None or any(place < count for place in parts.again[stage])):
                inputs, keywords, *_ = self.batch(rows, known)
                given = parts.given(inputs) if context is None else [*inputs, *context]
                context = given[count:]
            assert context is not None
            arguments = parts.arguments(stage, passed if stage else given[:count], given or [*[None] * count, *context])
            gathered = gathered if times else time.perf_counter_ns()
            try:
                result, ns = call(stage, arguments, {} if stage else keywords)
            except Exception:  # after the first: the next unit of these rows begins here, and will raise it again
                if len(times) <= again or stop is None:
                    raise
                sound = False  # it may have changed the result of the one before
                break
            times.append(ns)
            if stop is not None:
                stop.made = max(0, len(times) - again)
            if stage < self.last:
                passed = passed_on(result, stage, len(rows))
                self.activations.learn(stage, passed, longest, context)
        inferred = time.perf_counter_ns()
        del times[:again]
        outputs: list[Array] = []
        last = stages[len(times) - 1]
        if last == self.last:
            outputs = self.scatter(result, len(slots), len(rows), longest)
        else:
            kept = tuple(tensor.clone() if self._reuses[last] else tensor for tensor in passed)
            self.activations.commit(slots, Passed(last, kept, longest, context or ()), range(len(slots)))
        if not sound:
            self.note_failure(slots)
        return Ran(outputs, *since(begin, gathered, inferred), stages_ns=tuple(times), steps=len(times))

    def note_failure(self, slots: Slots) -> None:
        """The stage may have changed what is kept of the stage before; tensors made in inference mode have no version
        counters. Without it, the next unit of these rows runs the stages before again, from their slots.
        """
        self.activations.release(slots)

    def call(self, stage: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, int]:
        """Call a stage. Returns its result and nanoseconds."""
        before = time.perf_counter_ns()
        if self._writes[stage]:  # into slots, into what is kept, or into what the stage before has returned
            arguments = [argument.clone() for argument in arguments]
        result = self.model.stages.calls[stage](*arguments, **keywords)
        return result, time.perf_counter_ns() - before

    def _try(self, stage: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, int]:
        """As `call`, and detect whether the stage writes into its arguments or reuses its result's memory."""
        arguments = [_copied(argument) for argument in arguments]
        before = _state(arguments)
        result, ns = self.call(stage, arguments, keywords)
        self._writes[stage] |= before != _state(arguments)
        if len(arguments[0]) <= _TWICE and stage < self.last:
            # The first result is still alive, so the second is in the same memory only if the stage reuses it.
            again, _ = self.call(stage, [_copied(argument) for argument in arguments], keywords)
            self._reuses[stage] |= bool(_storages(result) & _storages(again))
        return result, ns


def _state(arguments: Sequence[torch.Tensor]) -> list[tuple[int, bytes]]:
    """Changes with every write: one through torch changes a version counter, one through numpy only the values."""
    return [(value._version, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for value in arguments]


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with a version counter, which tensors made in inference mode lack."""
    with torch.inference_mode(False), torch.no_grad():
        return value.clone()


def _storages(result: Any) -> set[int]:
    """The addresses of the tensors that a stage returned."""
    values = (result,) if isinstance(result, torch.Tensor) else result
    return {value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor)} - {0}
