"""The segments of a model for `check_segments`: all of it, its stages, the steps of a cell, or those of a decoder.

All but the whole run on the caller's thread, on the device where the weights are, and on copies of what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, cycle
from typing import TYPE_CHECKING

import numpy as np
import torch

from app.contract import Array, Model, ModelInfo, SampleRow, TensorSpec
from app.errors import ConfigError
from app.models.base import device_of, normalise
from app.models.checks.row_check import Cause, Run, TriedBatch, batches_together, padding
from app.models.checks.samples import keywords, longest, stack
from app.models.checks.segment_check import LoneRow, Segment, Tensors, beside, spec_of
from app.models.decoders.places import PlacedText, Places
from app.models.decoders.texts import TextDecoder
from app.models.recurrent.cells import CellModel
from app.models.stages.staged import SecondAxes, resized, results_of

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel

_TOGETHER = 4  # rows of a model in stages
_ROWS = 3  # of a cell, that run alone and then in shared batches
_STEPS = 32  # of a row, at most: a cell that feeds itself may make many more, which show nothing new
#: The most tokens of each row of a decoder, and its steps: long ones show nothing else.
_TEXTS = ((16, 7), (12, 5), (8, 3), (4, 1))


def whole_model(
    info: ModelInfo, rows: Sequence[SampleRow], run: Run, pairs: Sequence[tuple[SampleRow, SampleRow]] = ()
) -> Iterator[Segment]:
    """A model as one segment, which `run` runs: each row alone, then all of them in a few batches. Then the first row
    of each pair beside the second, which is longer: a model may compute long batches in another way, as in parts, and
    the shortest row, as one that takes the best three of its values.

    `rows` may share a batch. None where a row is always alone.
    """

    def answers(lone: Sequence[LoneRow]) -> Sequence[Array]:
        return run([one.row for one in lone], len(lone))

    def together(pair: Sequence[SampleRow]) -> Callable[[Sequence[LoneRow]], Sequence[Array]]:
        return lambda _: run(pair, 2)

    def again(one: LoneRow) -> Sequence[Array]:
        return answers([one])

    if info.batching.max_batch > 1:
        lone = [LoneRow(row, (), run([row], 1)) for row in rows]
        batches = list(batches_together(rows, info.batching.max_batch))
        yield Segment(info.outputs, lone, answers, batches, again=again)
    for pair in pairs:
        try:
            own = LoneRow(pair[0], (), run(pair[:1], 1))
        except Exception:  # a row may be too short, as for a convolution
            continue
        if all(np.isfinite(value).all() for value in own.made if value.dtype.kind == "f"):  # a mean of nothing is not
            padded = TriedBatch([0], [padding(pair, 0, [0, 1])], Cause.PADDING)
            yield Segment(info.outputs, [own], together(pair), [padded], again=again)


def segments_of(model: Model, rows: Sequence[SampleRow]) -> Iterable[Segment]:
    """The segments between which a batch may change; none of a model in one piece.

    `rows` may share a batch, the longest first. Raises what the model raises, and ConfigError where a stage passes on
    what it must not. Not for a model that answers the same rows differently twice.
    """
    if model.info.batching.max_batch < 2:
        return ()
    if model.stages:
        return _Stages(model, rows).segments()
    if model.writes:
        return [_decoder_segment(model, rows)]
    return [_cell_segment(model, rows)] if isinstance(model.call, CellModel) else ()


# stages


class _Stages:
    """A segment for each stage, which takes what the stage before passed on, and the inputs and their context again
    from the rows. Rows that ran alone so far share a batch from it on, padded with 0 as the server does.

    The results of the stage and of all later ones are compared.
    """

    def __init__(self, model: Model, rows: Sequence[SampleRow]) -> None:
        self._model = model
        self._rows = rows
        self._device = device_of(model.call)
        self._results = [self._from(0, (), [row]) for row in rows]
        self._axes = SecondAxes()
        for row, results in zip(rows, self._results, strict=True):
            for stage, passed in enumerate(results):
                self._axes.learn(stage, passed, row.lengths)
        for stage, of_rows in enumerate(zip(*(results[:-1] for results in self._results), strict=True)):
            for number, tensors in enumerate(zip(*of_rows, strict=True)):
                self._check_axes(stage, number, tensors)

    def _check_axes(self, stage: int, number: int, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ConfigError unless rows of all lengths can be joined to a batch. `tensors`: of each row alone."""
        fixed = [tensor.shape[2 if self._axes.of(stage, number) else 1 :] for tensor in tensors]
        other = next((place for place, shape in enumerate(fixed) if shape != fixed[0]), None)
        if other is not None:
            axes = " or ".join(map(repr, self._rows[0].lengths))
            first, second = (
                f"{list(tensors[place].shape)} of a row of {self._rows[place].lengths}" for place in (0, other)
            )
            raise ConfigError(
                f"stage {stage}: value {number}: expected a second axis as long as {axes} and no other one that "
                f"varies, got {first}, {second}: cut the model elsewhere"
            )

    def segments(self) -> Iterator[Segment]:
        batches = list(batches_together(self._rows, min(_TOGETHER, self._model.info.batching.max_batch)))
        for stage in range(len(self._model.stages)):
            where = f"at stage {stage}"
            lone = [
                LoneRow(row, results[stage - 1] if stage else [], [*chain(*results[stage:])], where)
                for row, results in zip(self._rows, self._results, strict=True)
            ]
            named = [replace(batch, how=[f"{how} {where}" for how in batch.how]) for batch in batches]
            yield Segment(self._specs(stage), lone, partial(self._run, stage), named, beside_nan=[0])

    def _run(self, stage: int, lone: Sequence[LoneRow]) -> Tensors:
        """The results of a stage and of all later ones."""
        rows = [one.row for one in lone]
        passed = []
        for number, pieces in enumerate(zip(*(one.given for one in lone), strict=True)):
            axis = self._axes.of(stage - 1, number)
            passed.append(torch.cat([resized(piece, longest(rows)[axis]) for piece in pieces] if axis else pieces))
        return [*chain(*self._from(stage, passed, rows))]

    def _specs(self, stage: int) -> list[TensorSpec]:
        """Of the results from this stage on, with the stage in each name."""
        *inner, last = range(len(self._model.stages))
        found = []
        for number in inner[stage:]:
            values = self._results[0][number]
            for place, value in enumerate(values):
                name = f"stage {number}" if len(values) == 1 else f"stage {number}, value {place}"
                found.append(spec_of(name, value, self._axes.of(number, place)))
        return [*found, *(replace(spec, name=f"stage {last}, {spec.name}") for spec in self._model.info.outputs)]

    def _from(self, first: int, passed: Tensors, rows: Sequence[SampleRow]) -> list[list[torch.Tensor]]:
        """The results of each stage from `first` on, copied."""
        model = self._model
        inputs = [torch.as_tensor(value).to(self._device) for value in stack(model.info.inputs, rows)]
        results: list[list[torch.Tensor]] = []
        for result in results_of(model.stages, inputs, first, passed, **keywords(model, rows, len(rows))):
            last = first + len(results) + 1 == len(model.stages)
            values = normalise(result, model.info.outputs) if last else result
            results.append([torch.as_tensor(value).clone() for value in values])
        return results


# cells


def _cell_segment(model: Model, rows: Sequence[SampleRow]) -> Segment:
    """A step of a cell; what comes before the first and after the last is checked with the whole model.

    A few rows run alone, and the tensors of each step are kept. The same steps then run in shared batches: rows begin
    one after another, and leave as they end.
    """
    call, first = model.call, rows[0]
    assert isinstance(call, CellModel)
    steps = [_alone(model, call, row) for row in (first, *rows[:0:-1], first)[:_ROWS]]  # the last is shorter
    lone, last = list(chain.from_iterable(steps)), len(steps[0]) - 1
    states = [f"state[{place}]" for place in range(len(call.declared.state))]
    names = [spec.name for spec in model.info.outputs]
    if call.declared.finishes:
        ys = len(lone[0].made) - len(states) - 1
        names = [f"y[{place}]" if ys > 1 else "y" for place in range(ys)]
    specs = list(map(spec_of, [*names, *states, "ended"], lone[0].made))
    batches = list(_batches(steps, lone, model.info.batching.max_batch))
    ends, step = sorted({0, last // 2, last}), partial(_step, call)
    return Segment(specs, lone, step, batches, ends, lambda one: step([one]), Cause.MEMORY)


def _batches(steps: Sequence[Sequence[LoneRow]], lone: Sequence[LoneRow], most: int) -> Iterator[TriedBatch]:
    """Batches of steps: first the first step of all rows; then each row begins one step after the row before it,
    and is alternately before and behind it in the batch. `lone` has the steps of all rows.
    """
    begins = list(accumulate(map(len, steps), initial=0))
    yield beside(lone, begins[:-1][:most])
    for now in range(1, len(steps) + max(map(len, steps))):
        places = [begins[row] + now - row for row, own in enumerate(steps) if 0 <= now - row < len(own)][:most]
        if len(places) > 1:
            yield beside(lone, places[::-1] if now % 2 else places)


def _alone(model: Model, call: CellModel, row: SampleRow) -> list[LoneRow]:
    """The steps of a row."""
    inputs = [torch.as_tensor(value).to(device_of(call)) for value in stack(model.info.inputs, [row])]
    begun = call.begin(inputs, **keywords(model, [row], 1))
    limit = min(_STEPS, call.limits(begun)[0])
    state: Tensors = begun.state
    steps: list[LoneRow] = []
    while len(steps) < limit and not (steps and steps[-1].made[-1][0]):
        one = LoneRow(row, [*([] if begun.x is None else [begun.x[:, len(steps)]]), *state], ())
        steps.append(replace(one, made=_step(call, [one]), where=f"at step {len(steps) + 1}"))
        state = steps[-1].made[-1 - len(state) : -1]
    return steps


def _step(call: CellModel, lone: Sequence[LoneRow]) -> list[torch.Tensor]:
    """One step of some rows, on copies: a cell may write into its arguments, and return the same memory again. Their
    ys, states, and which have ended.
    """
    given = list(map(torch.cat, zip(*(one.given for one in lone), strict=True)))  # in memory of its own
    reads = len(given) - len(call.declared.state)
    stepped = call.step(given[0] if reads else None, tuple(given[reads:]))
    ended = given[0].new_zeros(len(lone), dtype=torch.bool) if stepped.ended is None else stepped.ended
    return [value.clone() for value in (*stepped.ys, *stepped.state, ended)]


# decoders


def _decoder_segment(model: Model, rows: Sequence[SampleRow]) -> Segment:
    """The last steps of a few rows: they join others that are half way, and make that step together.

    Its logits are compared with those of the model's own forward for all tokens of the row, without a cache. So this
    also finds an architecture whose steps differ from its forward.
    """
    assert isinstance(model.call, TextDecoder)
    decoder, bounds = model.call.decoder, model.call.bounds
    lone = []
    for row, (tokens, most) in zip(cycle(rows), _TEXTS, strict=False):
        ids = row.arrays[0].tolist()[: min(tokens, bounds.both or bounds.prompt)]
        steps = min(most, len(ids), bounds.text)
        # a decoder reads its prompt without the last token, which is that of the first step
        fed = [decoder.start, *ids[: steps - 1]] if decoder.encodes else ids[-steps:]
        read = ids if decoder.encodes else ids[: len(ids) - steps + 1]
        one = LoneRow(row, [torch.tensor([each], device=decoder.device) for each in (read, fed)], ())
        lone.append(LoneRow(row, one.given, _whole(decoder, one), f"at step {steps}"))
    most = model.info.batching.max_batch
    batches = [beside(lone, places[:most], Cause.JOINS) for places in ([0, 1, 2, 3], [3, 2, 1, 0])]
    again = partial(_whole, decoder)
    specs = [spec_of("logits", lone[0].made[0])]
    return Segment(specs, lone, partial(_stepped, decoder), batches, again=again, once="by its own forward")


def _whole(decoder: DecoderModel, one: LoneRow) -> Tensors:
    """The logits after all tokens of a row, from the model's own forward."""
    read, fed = one.given
    return [decoder.whole(read, fed if decoder.encodes else torch.cat([read[:, :-1], fed], 1))[-1:]]


def _stepped(decoder: DecoderModel, lone: Sequence[LoneRow]) -> Tensors:
    """The logits of the last step, which all rows make together. Those with more steps begin before. The slabs hold
    noise at first, as they do after earlier rows.
    """
    read = [one.given[0][0].tolist() for one in lone]
    fed = [one.given[1][0].tolist() for one in lone]
    width, steps = max(map(len, read)), max(map(len, fed))
    places: Places[int] = Places(decoder, len(lone), width + steps, width if decoder.encodes else 0)
    for slab in (places.own, places.read):
        if slab is not None:
            slab.values.normal_()
    rows: list[PlacedText[int]] = []
    for left in range(steps, 0, -1):
        new = [at for at, own in enumerate(fed) if len(own) == left]
        if new:
            ids = torch.tensor([read[at] + [0] * (width - len(read[at])) for at in new], device=decoder.device)
            rows += places.begin(new, decoder.begin(ids, [len(read[at]) for at in new]), rows)
        logits = places.step(rows, [fed[row.text][-left] for row in rows])
        places.stepped(rows)
    made = torch.empty_like(logits)
    made[[row.text for row in rows]] = logits
    return [made]
