"""A model in stages on a CPU: a unit runs one stage, of rows that may come from several batches of the stage before.

A stage never writes where it reads, so that a unit that failed can run again: `trial` notices one that would, and it
gets copies from then on. `trial` also notices a stage that returns the same memory each time, of which a copy is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from app.contract import Array, Model
from app.engine.activations import Activations
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import WHOLE, Job, Ran
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.stages.staged import passed_on

_TWICE = 2  # rows: up to here a trial runs each stage twice, to see whether it returns the same memory again


class _Batch(NamedTuple):
    """Rows that run together: their slots, those of the batch with its padding, how long they are, and the context."""

    slots: Slots
    rows: list[int]
    lengths: Mapping[str, Array]
    longest: Mapping[str, int]
    context: Sequence[torch.Tensor]


class StagedExecutor(CpuExecutor):
    """Implements engine.device.Executor. Rows of different units may be at different stages at once."""

    activations: Activations

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        self.activations = Activations()
        self._last = len(model.stages) - 1
        self._writes = [False] * len(model.stages)  # the stage writes into its arguments
        self._reuses = [False] * len(model.stages)  # it returns the same memory each time

    def run(self, slots: Slots, size: int, stage: int = WHOLE, job: Job | None = None) -> Ran:
        """Run one stage of the rows in `slots` as a batch of `size` >= rows. Raises whatever the stage raises.

        What it returns is kept for the next one, unless it is the last. With `job` the batch passes unchanged through
        as many stages as that has steps, until it is recalled, or until one fails: then it ends with the stage before.
        Only what the last of them returns is kept. WHOLE: all stages, and nothing is kept.
        """
        if stage == WHOLE:
            return self._whole(slots, size, tried=False)
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows) if self.pool.lengths else ({}, {})
        arguments, keywords, context = self._arguments(slots, rows, stage, lengths, longest)
        batch = _Batch(slots, rows, lengths, longest, context)
        gathered = time.perf_counter_ns()
        times: list[int] = []
        result = self._timed(stage, arguments, keywords, times)
        if job is not None and job.steps > 1:
            result = self._pass_on(job, result, batch, times)
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
        output_ns = time.perf_counter_ns() - inferred
        return Ran(outputs, gathered - begin, inferred - gathered, output_ns, stages_ns=tuple(times), steps=len(times))

    def _timed(self, stage: int, arguments: Sequence[Any], keywords: Mapping[str, Any], times: list[int]) -> Any:
        before = time.perf_counter_ns()
        result = self.model.stages[stage](*arguments, **keywords)
        times.append(time.perf_counter_ns() - before)
        return result

    def _pass_on(self, job: Job, result: Any, batch: _Batch, times: list[int]) -> Any:
        """Further stages of a batch that stays unchanged. `result` is what the first returned."""
        given: Sequence[Any] = ()
        while len(times) < job.steps and not job.recalled:
            stage = job.stage + len(times)
            passed: Sequence[Any] = passed_on(result, stage - 1, len(batch.rows))
            self.activations.learn(stage - 1, passed, batch.longest, batch.context)
            again = self.model.again[stage]
            if again and not given:
                given = [*self._gather(*batch[:4])[0], *batch.context]
            arguments = [*passed, *(given[place] for place in again)]
            if self._writes[stage]:  # a stage may return what it was given
                arguments = [argument.clone() for argument in arguments]
            try:
                result = self._timed(stage, arguments, {}, times)
            except Exception:  # it will be raised again by the next unit of these rows, which begins there
                break
        return result

    def trial(self, slots: Slots, size: int) -> Ran:
        """All stages. Also detects one that writes into its arguments, or that returns the same memory each time."""
        return self._whole(slots, size, tried=True)

    def _arguments(
        self, slots: Slots, rows: list[int], stage: int, lengths: Mapping[str, Array], longest: Mapping[str, int]
    ) -> tuple[list[Any], dict[str, Any], Sequence[torch.Tensor]]:
        """What a stage is called with, and the batch's context. `rows`: the slots of the batch, padding included."""
        model, again, writes = self.model, self.model.again[stage], self._writes[stage]
        if stage == 0:
            arguments, keywords = self._gather(slots, rows, lengths, longest)
            context = () if model.context is None else model.context(*arguments)
            given = [*arguments, *context] if again else []
        else:
            arguments, own = self.activations.gather(rows, stage, longest)
            if writes and not own:
                arguments = [argument.clone() for argument in arguments]
            keywords, context, given = {}, (), []
            if model.context is not None:
                kept = self.activations.context(rows, longest)
                if kept is None or any(place < len(model.info.inputs) for place in again):
                    given, _ = self._gather(slots, rows, lengths, longest)
                context = model.context(*given) if kept is None else kept
                given = [*(given or [None] * len(model.info.inputs)), *context]
            elif again:
                given, _ = self._gather(slots, rows, lengths, longest)
        repeated = [given[place] for place in again]
        return [*arguments, *(map(torch.clone, repeated) if writes else repeated)], keywords, context

    def _whole(self, slots: Slots, size: int, *, tried: bool) -> Ran:
        """All stages, one after another. `tried`: watch what they do to their arguments."""
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows) if self.pool.lengths else ({}, {})
        inputs, keywords = self._gather(slots, rows, lengths, longest)
        context = () if self.model.context is None else self.model.context(*inputs)
        gathered = time.perf_counter_ns()
        given = [*inputs, *context]
        arguments: Sequence[Any] = [*inputs, *(given[place] for place in self.model.again[0])]
        times: list[int] = []
        result: Any = None
        for stage, call in enumerate(self.model.stages):
            if stage:
                passed = passed_on(result, stage - 1, size)
                self.activations.learn(stage - 1, passed, longest, context)
                arguments = [*passed, *(given[place] for place in self.model.again[stage])]
            if tried or self._writes[stage]:
                arguments = [_copied(argument) for argument in arguments]
            before = _state(arguments) if tried else None
            started = time.perf_counter_ns()
            result = call(*arguments, **keywords)
            times.append(time.perf_counter_ns() - started)
            if tried:
                self._notice(stage, before != _state(arguments))
                if size <= _TWICE and stage < self._last:
                    # The first result is still there: only the same memory can hold the second as well.
                    again = call(*map(_copied, arguments), **keywords)
                    self._reuses[stage] |= bool(_storages(result) & _storages(again))
            keywords = {}
        inferred = time.perf_counter_ns()
        outputs = self._scatter(result, len(slots), size, longest)
        return Ran(outputs, gathered - begin, sum(times), time.perf_counter_ns() - inferred, stages_ns=tuple(times))

    def _notice(self, stage: int, written: bool) -> None:
        """A stage has run, and may have written into its arguments."""
        self._writes[stage] |= written
        if stage == 0:
            self.copies |= written


def _state(arguments: Sequence[torch.Tensor]) -> list[tuple[int, bytes]]:
    """Every write through torch moves a tensor's version counter; one through numpy shows in the values alone."""
    return [(value._version, value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for value in arguments]


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with a version counter, which tensors made for inference have not."""
    with torch.inference_mode(False), torch.no_grad():
        return value.clone()


def _storages(result: Any) -> set[int]:
    """Where the tensors that a stage returned lie."""
    values = (result,) if isinstance(result, torch.Tensor) else result
    return {value.untyped_storage().data_ptr() for value in values if isinstance(value, torch.Tensor)} - {0}
