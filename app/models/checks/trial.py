"""Tries a model before it serves: batches of several sizes, rows at full length, and the row check.

The model is run through a `Run` (see row_check.py): `starling check` calls the module itself, and the engine runs it on
its device. `Run` raises what the model raises, and ConfigError if the outputs are not as declared.

A model that raises on every made-up row may still be correct: a text may have to be a number, an id may have to exist.
That is `Unfit`, and the caller decides what to do. With real rows it is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from app.contract import Model, ModelInfo, SampleRow, axis_bounds
from app.errors import ConfigError
from app.models.base import device_of, is_out_of_memory, networks_of, one_line, shortened, with_place
from app.models.checks.advice import advice_on, is_about_shapes, is_of_one_size
from app.models.checks.calling import call_directly, on_thread, only_exceptions
from app.models.checks.row_check import Cause, Finding, Run, check_at_once, tolerance_of
from app.models.checks.samples import (
    AskedParameters,
    beside_longer,
    content_of,
    full_lengths,
    row_check_rows,
    stack,
    stretched,
    trial_rows,
)
from app.models.checks.segment_check import check_segments
from app.models.checks.segments import segments_of, whole_model
from app.models.process_state import OF_BATCHES, ProcessState
from app.models.recurrent.cells import CellModel
from app.models.recurrent.rnn_graph import holds_layer
from app.user_code import place_of

GIVE_ROWS = 'give real rows: [warmup] file = "sample.json" in model.toml'
_OF_TRAINING = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # these compute otherwise then
_ONE_ROW = "Or run each row alone, by max_batch = 1 under [batching]"
_REMEDIES = {
    Cause.COMPANY: "Compute nothing across the batch (dimension 0): put BatchNorm in eval mode, give recurrent layers "
    "and transformers batch_first=True, take softmax, mean and the like along other dimensions, branch by row, not by "
    "x.max(), read each row's own parameters, mask what it pads; torch's dynamic quantization takes one scale for all "
    f"rows. {_ONE_ROW}",
    Cause.PADDING: "Padding must not reach a row's answer: give the model a mask or its rows' lengths (the keys mask "
    f"and lengths of an input in model.toml) and use it, in a recurrent layer by packing sequences. {_ONE_ROW}",
    Cause.JOINS: "Its attention must read no more than its mask shows, and its positions must be those it is given",
    Cause.AT_ONCE: "Keep nothing of a call in the model, as in a buffer that it fills, or serve it with one worker",
    Cause.MEMORY: "Keep nothing in the cell between two steps: what a row remembers belongs into its state",
}
_ONE_SIZE = "was it exported, or written, for one batch size? Export it with a dynamic batch dimension"
_BY_ITS_CELL = "Set recurrent = true in model.toml: each row then runs for its own length, with the weights as they are"


#: What is not known of a model that has run no row before it served.
UNCHECKED = f"whether its rows are independent is unchecked, as it raised on every made-up row; {GIVE_ROWS}"
#: Why a model that has run no row is refused if an older version of it works.
REPLACES_NONE = "It replaces no version that works, unless model.toml says allow_untried = true"


class Unfit(Exception):
    """The model raises on every made-up row, at every batch size. The message says what it raises, where and why."""


class NeverFits(Unfit):
    """An empty batch raises the same, so no row can fit."""


def fit_row(model: Model, run: Run) -> SampleRow:
    """A row that the model takes in batches of 1, 2 and its largest: the first sample, a plain row or a made-up one.

    Raises ConfigError if the model takes it at some sizes only, raises on the sample, or does not return what it
    declares; Unfit if it raises on made-up rows at every size.
    """
    inputs = model.info.client_inputs
    if model.checks.samples:
        try_sizes(model, model.checks.samples[0], run)
        return model.checks.samples[0]
    bounds = axis_bounds(inputs).values()
    failed: list[tuple[SampleRow, Any]] = []  # and what it raised
    for row in trial_rows(inputs, lambda: is_about_shapes(failed[0][1])):
        try:
            try_sizes(model, row, run)
        except Unfit as error:
            failed.append((row, error.__cause__))
        else:
            return row
    plain, first = failed[0]
    what = with_place(one_line(first), first)
    remedy = f"if such rows are no valid input, {GIVE_ROWS}"
    too_short = is_about_shapes(first) and not all(bounds)  # perhaps: an axis without a bound may be of any length
    away = isinstance(first, OSError) and first.filename is None  # perhaps: of a connection, not of a file
    never_fits = not (too_short or away) and _empty_raises(model, plain, first)
    if away:
        remedy = f"if what it calls is away, calls are answered once that is back; {remedy}"
    if never_fits:
        declared = _declared(model.info, first)
        remedy = f"an empty batch raises it, too, so no row can fit: correct the model, or {declared}"
    unfit = NeverFits if never_fits else Unfit
    raise unfit(f"{_leave_batch_out(model.info)}it raises on every made-up row: {what}; {remedy}") from first


def _declared(info: ModelInfo, error: Exception) -> str:
    """What of the inputs' declaration may be at fault, and how it is."""
    shapes = is_about_shapes(error)
    named = (
        (spec.name if shapes else f"{spec.name} {spec.datatype}", spec.axes_shown()) for spec in info.client_inputs
    )
    inputs = ", ".join(f"{name} [{', '.join(axes)}]" for name, axes in named)
    return f"the {'shapes' if shapes else 'inputs'} in model.toml: {inputs}"


def _empty_raises(model: Model, row: SampleRow, error: Exception) -> bool:
    """Whether an empty batch raises the same error. Then shapes or code are at fault, since it has no values."""
    device, batch = device_of(model.call), stack(model.info.inputs, [row])
    empty = [values.to(device)[:0] if isinstance(values, torch.Tensor) else values[:0] for values in batch]
    try:
        with torch.inference_mode(), only_exceptions():
            model.call(*empty, **({"parameters": []} if model.takes_parameters else {}))
    except Exception as other:  # a user's code may raise anything
        return type(other) is type(error) and place_of(other) == place_of(error)
    return False


def try_sizes(model: Model, row: SampleRow, run: Run) -> None:
    """Run copies of one row in batches of 1, 2 and `max_batch`, so that only the size differs.

    Each size after the first runs on a thread of its own: a model serves on other threads than it was tried on.
    """
    largest = model.info.batching.max_batch
    sizes = sorted({1, min(2, largest), largest})
    failed: dict[int, Exception] = {}
    for number, size in enumerate(sizes if len(sizes) > 1 else sizes * 2):
        try:
            on_thread(f"worker-{number}", run, [row], size) if number else run([row], size)
        except Exception as error:  # a user's code may raise anything
            failed[size] = error
    if not failed:
        return
    worked = [size for size in sizes if size not in failed]
    wrong = {size: error for size, error in failed.items() if isinstance(error, ConfigError)}
    size, first = next(iter((wrong or failed).items()))
    others_raise_it = is_out_of_memory(first) or advice_on(first) or is_of_one_size(first)  # rows of other values
    if not (worked or wrong or model.checks.samples or others_raise_it):
        raise Unfit from first
    hint = _hint(size, first, worked, alone=len(failed) == 1)
    problem = f"{_leave_batch_out(model.info)}{_batch(size)}: {_what(first)}{hint}"
    raise ConfigError(problem) from (None if size in wrong else first)


def try_full_length(model: Model, row: SampleRow, run: Run) -> str | None:
    """Run the row with every variable axis at its bound. A warning where a sample cannot be made so long.

    Raises ConfigError when a row of made-up values fails only because of its length.
    """
    full = full_lengths(model.info.client_inputs)
    if full == row.lengths:
        return None
    try:
        run([stretched(model.info.client_inputs, row, full)], 1)
    except Exception as error:
        what = f"a row at full length ({', '.join(f'{axis} {length}' for axis, length in full.items())})"
        problem = f"{what}: {_what(error)}"
        if model.checks.samples and not isinstance(error, ConfigError):
            return f"not tried: a sample repeated to {problem}"
        raise ConfigError(f"{problem}; shorter rows work: is max_shape too large?") from error
    return None


def check_independence(model: Model, run: Run, *, at_once: bool = False) -> str | None:
    """The row check, as `model.checks.row_check` says. Returns a warning, or raises ConfigError where it refuses.

    `at_once`: several workers will call it at the same time.
    """
    if model.checks.row_check == "off":
        return None
    try:
        finding = _compared(model, run, at_once)
    except ConfigError:
        raise
    except Exception as error:
        what = _what(error)
        if model.checks.samples:
            raise ConfigError(f"row check: the rows of [warmup] in a batch: {what}") from error
        return f"whether its rows are independent is unchecked, it raises on made-up rows: {what}; {GIVE_ROWS}"
    if finding is None:
        return _blind_spot(model, run)
    if finding.cause is Cause.RANDOM:
        return (
            f"whether its rows are independent is unchecked, {finding}: does it sample, use dropout in training mode, "
            "or keep something of earlier calls (a counter, a state), which must not reach other requests?"
        )
    if model.checks.row_check == "warn":
        return str(finding)
    remedy = _REMEDIES[finding.cause]
    if finding.cause is Cause.PADDING and holds_layer(model.call) and not isinstance(model.call, CellModel):
        remedy = f"{_BY_ITS_CELL}. Otherwise: {remedy}"
    raise ConfigError(
        f"{_leave_batch_out(model.info)}{finding}. {remedy}; "
        'or serve it as it is, with row_check = "warn" in model.toml'
    )


def _compared(model: Model, run: Run, at_once: bool) -> Finding | None:
    """What the row check has found. Raises what the model raises."""
    # not on a GPU, where an index out of range crashes a kernel
    rows = row_check_rows(model.info, model.checks.samples, twos=device_of(model.call).type == "cpu")
    try:
        return _finding(model, rows, run, at_once)
    except Exception as error:  # a user's code may raise anything
        # of made-up rows perhaps because they are too short, as for a convolution, 2 is no index, or a space no letter
        long = is_about_shapes(error) and not isinstance(error, ConfigError)
        others = row_check_rows(model.info, model.checks.samples, long=long, alike=not long)
        if list(map(content_of, others)) == list(map(content_of, rows)):
            raise
    return _finding(model, others, run, at_once)


def _finding(model: Model, rows: Sequence[SampleRow], run: Run, at_once: bool) -> Finding | None:
    tolerance, most = tolerance_of(model), model.info.batching.max_batch
    on_cpu = device_of(model.call).type == "cpu"  # on a GPU an index out of range crashes a kernel: as 1, of length 1
    # a sample may have no other length
    pairs = [] if model.checks.samples else beside_longer(model.info, rows[0], shortest=on_cpu)
    # for a decoder, the check of its segments covers all of this
    finding = None if model.writes else check_segments(whole_model(model.info, rows, run, pairs), tolerance, most)
    if finding is not None and finding.cause is Cause.RANDOM:
        return finding
    if model.takes_parameters and not model.writes and most > 1 and _reads_first_alone(rows[0], run):
        return Finding(Cause.COMPANY, "of the parameters of a batch those of its first row alone are read")
    with torch.inference_mode(), only_exceptions():
        found = check_segments(segments_of(model, rows), tolerance, most)
        if not (found or finding or model.writes) and at_once and on_cpu:
            if (weight := _has_gradient(model)) is not None:  # two threads that write there crash the process
                return Finding(Cause.AT_ONCE, f"it adds to the gradient of {weight!r}: torch.autograd.grad does not")
            state = ProcessState(OF_BATCHES)
            try:
                found = check_at_once(model.info, rows, call_directly(model), tolerance)
            finally:
                state.put_back()
    return found or finding


def _has_gradient(model: Model) -> str | None:
    named = (each for net in networks_of(model) for each in net.named_parameters())
    return next((name for name, weight in named if weight.grad is not None), None)


def _reads_first_alone(row: SampleRow, run: Run) -> bool:
    """Whether a batch's first row is asked for parameters, and the second is not, which has others."""
    first, second = AskedParameters(row.parameters), AskedParameters(row.parameters)
    pair = [replace(row, parameters=each) for each in (first, second)]
    run(pair, 2)
    if first.asked and not second.asked:  # while they are equal, one may be asked for both
        second.update({name: 1 + (row.parameters.get(name) == 1) for name in first.asked})
        with suppress(Exception):  # which may be no value of it
            run(pair, 2)
            return not second.asked
    return False


def network_warning(model: Model) -> str | None:
    """A warning if a weight holds NaN, or a network that another object keeps is in training mode, else None.

    Such a model serves, because the weight may be unused, and dropout meant.
    """
    networks = networks_of(model)
    named = {value: name for net in networks for name, value in net.named_parameters()}  # a stage shares the model's
    read = ((name, value) for value, name in named.items() if value.is_floating_point() and not value.is_meta)
    wrong = next((name for name, value in read if bool(value.isnan().any())), None)
    if wrong is not None:
        return f"weight {wrong!r} holds NaN: answers that depend on it are NaN"
    trained = (part for net in networks for part in net.modules() if net is not model.call and part.training)
    layer = next((type(part).__name__ for part in trained if isinstance(part, _OF_TRAINING)), None)
    return None if layer is None else f"{layer} is in training mode: call .eval() on the network that the model keeps"


def _blind_spot(model: Model, run: Run) -> str | None:
    """A warning if the rows could not show a dependence."""
    if model.writes or model.info.batching.max_batch < 2:
        return None
    rows = row_check_rows(model.info, model.checks.samples)
    if model.checks.samples and rows[0].lengths and all(row.lengths == rows[0].lengths for row in rows):
        return "the row check had samples of one length, so that padding is unchecked: give rows of several lengths"
    with suppress(Exception):  # as of rows that are too short for it
        first = [np.array(value) for value in run(rows[:1], 1)]
        if all(np.array_equal(one, other) for row in rows[1:] for one, other in zip(first, run([row], 1), strict=True)):
            remedy = "give several that are answered unlike" if model.checks.samples else GIVE_ROWS
            return f"the row check could show nothing, as its rows ({len(rows)}) were answered alike; {remedy}"
    return None


def _leave_batch_out(info: ModelInfo) -> str:
    """A hint if each input begins with an axis -1, which declares the batch in other servers."""
    inputs = info.client_inputs
    if not all(spec.axes[:1] == (f"{spec.name}.0",) for spec in inputs):
        return ""
    row = ", ".join("-1" if axis else str(length) for axis, length in zip(inputs[0].axes, inputs[0].shape, strict=True))
    rest = row.partition(", ")[2]
    return f"input {inputs[0].name!r}: leave the batch out, shape = [{rest}], if that is the -1 of [{row}]; "


def _batch(size: int) -> str:
    return f"a batch of {size} row{'s' * (size > 1)}"


def _what(error: Exception) -> str:
    """The error in one line with its place."""
    text = shortened(str(error)) if isinstance(error, ConfigError) else one_line(error)
    advice = advice_on(error)
    return with_place(text, error) + (f"; {advice}" if advice else "")


def _hint(size: int, error: Exception, worked: Sequence[int], *, alone: bool) -> str:
    """Why a model may fail at one size, `alone` or beside others, when it works at those in `worked`."""
    if not worked or advice_on(error):
        return f": {_ONE_SIZE}" if is_of_one_size(error) else ""
    works = f"; {' and '.join(map(_batch, worked))} work{'s' * (len(worked) == 1)}"
    if is_out_of_memory(error):
        return works
    if size == 1 and alone and isinstance(error, ConfigError):
        return f"{works}: does it squeeze() without naming a dimension? That removes a batch of one"
    if size > max(worked) > 1:
        return f"{works}: give the most rows that it takes as max_batch, under [batching] in model.toml"
    return f"{works}: {_ONE_SIZE}{f'. {_ONE_ROW}' * (worked == [1])}"
