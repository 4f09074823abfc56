"""Cells: each row gets the answer that it has alone, and a cell whose rows depend on one another is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specs import info_of, spec
from torch.nn.utils.rnn import pad_sequence

from app.contract import Checks, Model
from app.errors import ConfigError
from app.models import Recurrent
from app.models.recurrent.cells import CellModel
from tests.tiers import repeatable

from .folders import try_out

# Invariant: a recurrent model gives each row the answer that it has alone, whatever rows run beside it and leave.


SAMPLES = spec("x", "FP32", ("time", 9), 2)
FIXED = spec("x", "FP32", 4, 2)
FIRST = spec("first", "INT64")
LAST = spec("y", "FP32", 2)
EVERY = spec("z", "FP32", ("time", 9), 2)
WRITTEN = spec("text", "INT64", ("written", 0))


class Sum:
    """The sum of what it has read; small integers, so that equal means equal."""

    def step(self, x, state):
        total = state[0] + x
        return total, (total,)


class Both(Sum):
    def step(self, x, state):
        total, state = super().step(x, state)
        return {"z": total, "y": total}, state


class Mean(Sum):
    """By `finish`, from the steps, the state and the lengths."""

    def finish(self, state, ys, lengths):
        assert torch.equal(ys[torch.arange(len(ys)), lengths - 1], state[0])
        return state[0] / lengths[:, None], ys


class CountDown:
    """Feeds itself: from a number down to zero."""

    def start(self, first):
        return None, (first,)

    def step(self, x, state):
        return state[0], (state[0] - 1,), state[0] == 0


def made(cell, inputs, outputs, max_steps=None, state=((2,),)):
    return CellModel(Recurrent(cell, state, max_steps), info_of(inputs, outputs))


def batch_of(lengths, padded_to=0):
    """Rows of small integers; what stands beyond a row's length would show."""
    torch.manual_seed(len(lengths))
    rows = torch.full((len(lengths), padded_to or max(lengths), 2), 1e6)
    for row, length in enumerate(lengths):
        rows[row, :length] = torch.randint(-9, 9, (length, 2)).float()
    return rows


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7)


@repeatable(30)
@given(LENGTHS, st.integers(0, 3))
def test_every_row_ends_after_its_own_length(lengths, more):
    x = batch_of(lengths, max(lengths) + more)
    last, every = made(Both(), [SAMPLES], [LAST, EVERY])(x, torch.tensor(lengths))
    mean, steps = made(Mean(), [SAMPLES], [LAST, EVERY])(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        sums = x[row, :length].cumsum(0)
        assert torch.equal(last[row], sums[-1])
        assert torch.equal(every[row, :length], sums)
        assert not every[row, length:].any()
        assert torch.equal(mean[row], sums[-1] / length)
    assert every.shape == steps.shape == x.shape


@repeatable(30)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=7))
def test_a_cell_that_ends_by_itself_and_a_bound_of_its_steps(firsts):
    text, steps = made(CountDown(), [FIRST], [WRITTEN], 10, ((),))(torch.tensor(firsts))
    assert text.shape == (len(firsts), 10), "the length must not depend on the batch"
    assert steps.tolist() == [min(10, first + 1) for first in firsts]
    for row, first in enumerate(firsts):
        counted = list(range(first, -1, -1))[:10]
        assert text[row].tolist() == counted + [0] * (10 - len(counted))


class UntilZero(Sum):
    """Ends behind the first zero that it reads."""

    def step(self, x, state):
        total = state[0] + x
        return x[:, 0].long(), (total,), x[:, 0] == 0

    def finish(self, state, ys, lengths):
        return ys, lengths, state[0]


@repeatable(60)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=7))
def test_a_cell_that_reads_and_ends_by_itself(rows):
    x = pad_sequence([torch.tensor(values).float()[:, None].repeat(1, 2) for values in rows], True, 1e6)
    count = spec("n", "INT64")
    model = made(UntilZero(), [SAMPLES], [WRITTEN, count, LAST])
    text, steps, total, ran = model(x, torch.tensor([len(values) for values in rows]))
    assert torch.equal(ran, steps)
    assert text.shape == (len(rows), 9), "the bound of the input's axis"
    for row, values in enumerate(rows):
        read = values[: values.index(0) + 1] if 0 in values else values
        assert text[row].tolist() == read + [0] * (9 - len(read))
        assert steps[row] == len(read)
        assert total[row].tolist() == [sum(read)] * 2


def test_lengths_come_without_being_declared_and_only_where_rows_differ():
    fixed = made(Sum(), [FIXED], [LAST])
    assert fixed.info.inputs == (FIXED,)
    x = batch_of([4, 4, 4])
    assert torch.equal(fixed(x)[0], x.sum(1))
    called_with = made(Sum(), [SAMPLES], [LAST]).info
    assert called_with.client_inputs == (SAMPLES,)
    assert [one.lengths_of for one in called_with.inputs] == ["", "time"]
    assert made(CountDown(), [FIRST], [WRITTEN], 10, ((),)).info.outputs[0].bounds == (10,)


def test_parameters_reach_start():
    class Gains(Sum):
        def start(self, x, *, parameters):
            gains = torch.tensor([row.get("gain", 1.0) for row in parameters])
            return x * gains[:, None, None], (torch.zeros(len(x), 2),)

    x = batch_of([2, 2])
    (total,) = made(Gains(), [SAMPLES], [LAST])(x, torch.tensor([2, 2]), parameters=[{}, {"gain": 3.0}])
    assert torch.equal(total, x.sum(1) * torch.tensor([[1.0], [3.0]]))


# what a cell does otherwise than it declares


def step_of(step):
    return SimpleNamespace(step=step)


def start_of(start):
    return SimpleNamespace(start=start, step=Sum().step)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (step_of(lambda x, s: x), r"step: expected \(y, state\) or \(y, state, ended\), got Tensor"),
        (
            step_of(lambda x, s: (x, (s[0].repeat(1, 2),))),
            r"step: state\[0\]: expected torch.float32 \[3, 2\] as declared, got torch.float32 \[3, 4\]",
        ),
        (step_of(lambda x, s: (x[:1], s)), r"step: expected y of 3 rows, got torch.float32 \[1, 2\]"),
        (
            SimpleNamespace(step=lambda x, s: ({"y": x}, s), finish=lambda *given: given[1]),
            "step: y: expected a tensor or a tuple of tensors, got dict",
        ),
        (step_of(lambda x, s: (x, s, x[:, 0])), r"step: ended: expected torch.bool \[3\], got torch.float32 \[3\]"),
        (start_of(lambda x: (x, (x,))), r"start: state\[0\]: expected \[3, 2\] as declared, got torch.float32 \[3, 5"),
        (start_of(lambda x: (x[:, 1:], (x[:, 0],))), r"start: expected x of shape \[3, 5, ...\] or None, got .* 4, 2"),
        (start_of(lambda x: (None, (x[:, 0],))), "max_steps: expected a number, for a cell that feeds itself, got Non"),
    ],
)
def test_another_cell_than_declared(cell, message):
    with pytest.raises(ConfigError, match=message):
        made(cell, [SAMPLES], [LAST])(batch_of([5, 5, 5]), torch.tensor([5, 5, 5]))


@pytest.mark.parametrize(
    ("cell", "max_steps", "why"),
    [
        (step_of(lambda x, s: (x, s, x[:, 0] > 0)), None, "the cell ends rows by itself"),
        (Sum(), 4, "max_steps ends rows before their length"),
    ],
)
def test_rows_that_end_early_are_not_as_long_as_their_input(cell, max_steps, why):
    message = f"output 'z': expected an axis with a name of its own, because {why}, got 'time'"
    with pytest.raises(ConfigError, match=message):
        made(cell, [SAMPLES], [EVERY], max_steps)(batch_of([5]), torch.tensor([5]))


# Rows must be independent at every step of a cell, whatever steps their neighbours are at; the message names it.


X = spec("x", "FP32", ("time", 32), 2)
IDS = spec("ids", "INT64", ("time", 32), minimum=0, maximum=9)


def model(cell, inputs=(X,), outputs=(LAST,), state=((2,),), max_steps=None, max_batch=8):
    call = CellModel(Recurrent(cell, state, max_steps), info_of(inputs, outputs, max_batch=max_batch))
    return Model(call.info, call, checks=Checks(row_check="refuse"))


class Centred(Sum):
    """The batch's mean goes into each row."""

    def step(self, x, state):
        return super().step(x - x.mean(0), state)


class Foremost(Sum):
    """Takes the first row's step for that of all rows, as if they had begun together."""

    def start(self, x):
        return x, (torch.zeros(len(x), 2), torch.zeros(len(x)))

    def step(self, x, state):
        total = state[0] + x * (state[1][:1] + 1)[:, None]
        return total, (total, state[1] + 1)


class Clock(Sum):
    """Counts steps in the cell."""

    def start(self, x):
        self.steps = 0
        return x, (torch.zeros(len(x), 2),)

    def step(self, x, state):
        self.steps += 1
        return super().step(x * self.steps, state)


class Spread(Sum):
    """A neighbour times 0 is nothing, but for one of NaN."""

    def step(self, x, state):
        return super().step(x + 0 * state[0].sum(0), state)


COMPANY = r"the other rows of its batch: output 'y': .* alone, .* at step \d+ beside (a row|rows) at steps? \d"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (Centred(), COMPANY),
        (Foremost(), COMPANY),  # the row check of the whole passes: all of its rows are at one step
        (Spread(), r"output 'y': .* alone, nan at step 1 with NaN and infinity in the place of its neighbours"),
        (Clock(), "a step of the cell depends on the steps that it made before, .* Keep nothing in the cell"),
    ],
)
def test_a_step_that_looks_at_other_rows_is_named(cell, message):
    with pytest.raises(ConfigError, match=message):
        try_out(model(cell, state=((2,), ()) if isinstance(cell, Foremost) else ((2,),)))


def test_an_end_that_neighbours_of_nan_hide_is_named():
    """It is one of the flags of all steps, of which some may differ where they run together, as by near ties."""

    class Missed:
        def start(self, ids):
            return None, (ids.sum(1) % 3 + 4.0,)

        def step(self, x, state):
            left = state[0] - 1
            return left.long(), (left,), left + 0 * left.sum() <= 0

    with pytest.raises(ConfigError, match=r"output 'ended': True alone, False at step \d with NaN and infinity in"):
        try_out(model(Missed(), inputs=(IDS,), outputs=(WRITTEN,), state=((),), max_steps=200))


def test_cells_of_independent_rows_pass():
    class Ends(CountDown):
        def start(self, ids):
            return None, (ids.sum(1),)

    assert try_out(model(Sum())) == []
    assert try_out(model(Sum(), max_batch=2)) == []
    assert try_out(model(Centred(), max_batch=1)) == []
    assert try_out(model(Ends(), inputs=(IDS,), outputs=(WRITTEN,), state=((),), max_steps=200)) == []
