"""A model in stages on a CPU: a unit runs one stage, of rows that may come from several batches of the stage before.

A failed unit runs again, so a stage must not write into its arguments. `trial` detects a stage that does, and from then
on it gets copies. One may do so for some rows only: after a failure the stages before run again, from the rows' slots.
`trial` also detects a stage that returns the same memory each time, whose results are then copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from app.contract import Array, Model
from app.engine.activations import Activations
from app.engine.cpu.executor import CpuExecutor, InputsWritten
from app.engine.executor import WHOLE, Job, Ran, Stop
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.stages.staged import passed_on

_TWICE = 2  # rows: up to here a trial runs each stage twice, to see whether it returns the same memory again


#: (stage, arguments, keywords) -> what the stage returns, and its nanoseconds.
_Call = Callable[[int, Sequence[Any], Mapping[str, Any]], tuple[Any, int]]


class _Batch(NamedTuple):
    """Rows that run together. `rows`: `slots` with padding; then their lengths, and the context."""

    slots: Slots
    rows: list[int]
    lengths: Mapping[str, Array]
    longest: Mapping[str, int]
    context: Sequence[torch.Tensor]


class StagedExecutor(CpuExecutor):
    """For a model in stages. Rows of different units may be at different stages at the same time."""

    activations: Activations

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        self.activations = Activations()
        self._last = len(model.stages) - 1
        self._writes = [False] * len(model.stages)  # the stage writes into its arguments
        self._reuses = [False] * len(model.stages)  # it returns the same memory each time

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        """The batch passes unchanged through `job.steps` stages, until it is stopped or a stage fails: then it ends
        with the stage before. Only the result of the last one is kept, unless the model ends with it.
        """
        if job.stage == WHOLE:
            yield self.whole(job.slots, job.size)
        else:
            yield self._run(job.slots, job.size, job.stage, job.steps, stop, self._call)

    def whole(self, slots: Slots, size: int) -> Ran:
        return self._run(slots, size, 0, len(self.model.stages), None, self._call)

    def trial(self, slots: Slots, size: int) -> Ran:
        """All stages. Also detects one that writes into its arguments, or that returns the same memory each time."""
        return self._run(slots, size, 0, len(self.model.stages), None, self._try)

    def note_failure(self, slots: Slots) -> None:
        """The stage may have changed what is kept of the stage before; tensors made in inference mode have no version
        counters.
        """
        self.activations.doubtful.update(slots)

    def _run(self, slots: Slots, size: int, stage: int, steps: int, stop: Stop | None, call: _Call) -> Ran:
        """`steps` stages from `stage` on. Without a Stop none may fail."""
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows) if self.pool.lengths else ({}, {})
        arguments, keywords, context = self._arguments(slots, rows, stage, lengths, longest)
        batch = _Batch(slots, rows, lengths, longest, context)
        gathered = time.perf_counter_ns()
        result, first_ns = call(stage, arguments, keywords)
        times, sound = [first_ns], True
        if steps > 1:
            result, sound = self._pass_on(stage, steps, stop, result, batch, times, call)
        inferred = time.perf_counter_ns()
        stage += len(times) - 1
        outputs: list[Array] = []
        if stage == self._last:
            outputs = self._scatter(result, len(slots), size, longest)
        else:
            passed = passed_on(result, stage, size)
            if self._reuses[stage]:
                passed = tuple(tensor.clone() for tensor in passed)
            self.activations.keep(slots, stage, passed, longest, context)
            if not sound:
                self.activations.doubtful.update(slots)
        output_ns = time.perf_counter_ns() - inferred
        infer_ns = sum(times) if stop is None else inferred - gathered  # a trial does more than compute
        return Ran(outputs, gathered - begin, infer_ns, output_ns, stages_ns=tuple(times), steps=len(times))

    def _pass_on(
        self, first: int, steps: int, stop: Stop | None, result: Any, batch: _Batch, times: list[int], call: _Call
    ) -> tuple[Any, bool]:
        """Run further stages of an unchanged batch. `result`: of the first stage. Returns that of the last one, and
        whether it is sound: a stage that failed may have changed it.
        """
        given: Sequence[Any] = ()
        while len(times) < steps and not (stop is not None and stop.now):
            stage = first + len(times)
            passed: Sequence[Any] = passed_on(result, stage - 1, len(batch.rows))
            self.activations.learn(stage - 1, passed, batch.longest, batch.context)
            again = self.model.again[stage]
            if again and not given:
                given = [*self._gather(*batch[:4])[0], *batch.context]
            try:
                result, ns = call(stage, [*passed, *(given[place] for place in again)], {})
            except Exception:  # the next unit of these rows begins with this stage, and will raise it again
                if stop is None:
                    raise
                return result, False
            times.append(ns)
        return result, True

    def _arguments(
        self, slots: Slots, rows: list[int], stage: int, lengths: Mapping[str, Array], longest: Mapping[str, int]
    ) -> tuple[list[Any], dict[str, Any], Sequence[torch.Tensor]]:
        """A stage's arguments and keywords, and the batch's context. `rows`: the slots of the batch with padding."""
        if stage and not self.activations.doubtful.isdisjoint(slots):
            return self._from_slots(slots, rows, stage, lengths, longest)
        model, again = self.model, self.model.again[stage]
        inputs: list[Any] = [None] * len(model.info.inputs)
        keywords: dict[str, Any] = {}
        context: Sequence[torch.Tensor] | None = None if model.context is not None else ()
        if stage and context is None:
            context = self.activations.context(rows, longest)
        if stage == 0 or context is None or any(place < len(inputs) for place in again):
            inputs, keywords = self._gather(slots, rows, lengths, longest)
        if context is None:
            assert model.context is not None
            context = model.context(*inputs)
        given = [*inputs, *context]
        passed = self.activations.gather(rows, stage, longest)[0] if stage else inputs
        return [*passed, *(given[place] for place in again)], {} if stage else keywords, context

    def _from_slots(
        self, slots: Slots, rows: list[int], stage: int, lengths: Mapping[str, Array], longest: Mapping[str, int]
    ) -> tuple[list[Any], dict[str, Any], Sequence[torch.Tensor]]:
        """As `_arguments`, computed again: what is kept of these rows may have been changed by a stage that failed."""
        inputs, keywords = self._gather(slots, rows, lengths, longest)
        context = () if self.model.context is None else self.model.context(*inputs)
        given, passed = [*inputs, *context], inputs
        for number in range(stage):
            arguments = [*passed, *(given[place] for place in self.model.again[number])]
            result, _ = self._call(number, arguments, {} if number else keywords)
            passed = list(passed_on(result, number, len(rows)))
        return [*passed, *(given[place] for place in self.model.again[stage])], {}, context

    def _call(self, stage: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, int]:
        """Call a stage. Returns its result and nanoseconds."""
        before = time.perf_counter_ns()
        if self._writes[stage]:  # into slots, into what is kept, or into what the stage before has returned
            arguments = [argument.clone() for argument in arguments]
        result = self.model.stages[stage](*arguments, **keywords)
        return result, time.perf_counter_ns() - before

    def _try(self, stage: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, int]:
        """As `_call`, and detect whether the stage writes into its arguments or reuses its result's memory."""
        arguments = [_copied(argument) for argument in arguments]
        before = _state(arguments)
        result, ns = self._call(stage, arguments, keywords)
        self._writes[stage] |= before != _state(arguments)
        if len(arguments[0]) <= _TWICE and stage < self._last:
            # The first result is still alive, so the second is in the same memory only if the stage reuses it.
            again, _ = self._call(stage, [_copied(argument) for argument in arguments], keywords)
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
