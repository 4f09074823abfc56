"""Invariant: a model that serves wrong answers to somebody is refused before it serves, with a remedy."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from specs import info_of, spec
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from app.contract import UNBOUNDED, Checks, Model, SampleRow
from app.errors import ConfigError
from app.models.checks.row_check import TOLERANCES, tolerance_of
from app.models.checks.trial import NeverFits, Unfit

from .folders import try_out

X = spec("x", "FP32", 3)
Y = spec("y", "FP32", 3)
SEQUENCE = spec("x", "FP32", ("tokens", 40), 4)
STATE = spec("y", "FP32", 5)
TEXT = spec("x", "BYTES", 1)
NUMBER = spec("y", "FP64", 1)
PIXELS = spec("x", "FP32", 10, 10)


def model(call, inputs=(X,), outputs=(Y,), samples=(), takes_parameters=False, **batching):
    read = (lambda given: None) if takes_parameters else None
    info = info_of(inputs, outputs, **{"max_batch": 8, **batching})
    return Model(info, call, read_parameters=read, checks=Checks(tuple(samples), "refuse"))


class LastState(nn.Module):
    """What a GRU has at the end, of padding too."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.gru = nn.GRU(4, 5, batch_first=True)

    def forward(self, x):
        return self.gru(x)[1][0]


def refused(*args, **options):
    with pytest.raises(ConfigError) as caught:
        try_out(model(*args, **options))
    return str(caught.value)


def test_a_recurrent_layer_over_padding_is_refused():
    message = refused(LastState(), [SEQUENCE], [STATE])
    for part in (
        "a row's answer depends on how far it is padded: output 'y': ",
        "padded to length 16 (axis 'tokens', its own length is 8) (the largest difference, 0.",
        "Set recurrent = true in model.toml", "give the model a mask or its rows' lengths",
        'row_check = "warn" in model.toml',
    ):  # fmt: skip
        assert part in message
    message = refused(lambda x: x.sum(2)[:, -1:].repeat(1, 5), [SEQUENCE], [STATE])
    assert "how far it is padded" in message
    assert "recurrent = true" not in message, "which is for recurrent layers"


def test_a_row_is_padded_to_full_length_where_that_takes_no_more_than_the_largest_batch():
    def otherwise_if_long(x):
        total = x.sum((1, 2))
        return (2 * total if x.shape[1] > 30 else total)[:, None].repeat(1, 5)

    message = refused(otherwise_if_long, [SEQUENCE], [STATE])
    assert "padded to length 40 (axis 'tokens', its own length is 16)" in message
    assert try_out(model(otherwise_if_long, [SEQUENCE], [STATE], max_batch=4)) == []
    assert try_out(model(otherwise_if_long, [SEQUENCE], [STATE], length_buckets=(16, 40))) == []


def test_a_batch_among_the_axes_is_what_a_message_begins_with():
    """`shape = [-1, 3]`, as other servers have it."""
    x, y = (spec(name, "FP32", ("x.0", UNBOUNDED), 3) for name in "xy")
    advice = "input 'x': leave the batch out, shape = [3], if that is the -1 of [-1, 3]; "
    assert refused(nn.Softmax(dim=1), [x], [y]).startswith(f"{advice}a row's answer depends on how far it is padded")
    with pytest.raises(Unfit) as caught:
        try_out(model(nn.Conv1d(9, 3, 1), [x], [y]))
    assert str(caught.value).startswith(advice)


def test_batch_norm_in_training_mode():
    message = refused(nn.BatchNorm1d(3))
    assert "a batch of 1 row: ValueError: Expected more than 1 value per channel" in message
    assert "exported" not in message, "which is not the cause"
    assert "call .eval() on the network" in message
    x, y = (spec(name, "FP32", 3, 4) for name in "xy")
    message = refused(nn.BatchNorm1d(3, track_running_stats=False), [x], [y])
    assert "depends on the other rows of its batch" in message
    assert "put BatchNorm in eval mode" in message


STRENGTH = spec("strength", "INT64")


@pytest.mark.parametrize("x", [X, spec("x", "FP32", ("tokens", 40))])
def test_a_number_of_one_row_is_not_that_of_all(x):
    message = refused(lambda x, strength: x[:, :3] * strength[0], [x, STRENGTH])
    assert "a row's answer depends on the other rows of its batch: output 'y': " in message
    assert "Or run each row alone, by max_batch = 1 under [batching]" in message


def test_a_number_that_must_not_be_two_is_one():
    """As an index: an answer that depends on the batch shows all the same."""
    two = nn.Embedding(2, 3).requires_grad_(False)
    assert "depends on the other rows of its batch" in refused(lambda x, k: x - x.mean(0) + two(k), [X, STRENGTH])
    assert try_out(model(lambda x, k: x + two(k), [X, STRENGTH])) == []


def test_rows_that_are_all_answered_alike_are_a_warning():
    """As the label of noise: nothing would show what the batch does to it."""
    (warning,) = try_out(model(lambda x: x.max() - x > 9, outputs=[spec("y", "BOOL", 3)]))
    assert warning.startswith("the row check could show nothing, as its rows (4) were answered alike; give real rows")
    assert try_out(model(lambda x: x > 0, outputs=[spec("y", "BOOL", 3)])) == []
    (warning,) = try_out(model(numbers, [TEXT], [NUMBER], samples=words(b"1")))
    assert warning.endswith("as its rows (1) were answered alike; give several that are answered unlike")


def test_dropout_is_a_warning():
    (warning,) = try_out(model(nn.Dropout(0.5)))
    assert "is unchecked, the same rows are answered differently twice: output 'y': " in warning
    assert "does it sample, use dropout in training mode, or keep something of earlier calls" in warning


# sizes and lengths


def up_to(most, error):
    """A model that takes so many rows."""

    def call(x):
        if len(x) > most:
            raise error
        return x

    return call


POSITIONS = nn.Embedding(32, 4)


@pytest.mark.parametrize(
    ("call", "inputs", "message"),
    [
        (
            lambda x: x.squeeze(),
            X,
            r"a batch of 1 row: output 'y': expected shape \[1, 3\], got \[3\]; a batch of 2 rows and a batch of 8 "
            r"rows work: does it squeeze\(\) without naming a dimension\?",
        ),
        (
            lambda x: x.reshape(1, 3),
            X,
            "batch of 2 rows: RuntimeError: .*; a batch of 1 row works: was it exported, .* Or run each row alone, by ",
        ),
        (
            lambda x: torch.ones(2, 3),
            X,
            r"a batch of 1 row: output 'y': expected .*, got \[2, 3\]; .*; a batch of 2 rows works: was it exported",
        ),
        (
            up_to(4, ValueError("no")),
            X,
            "a batch of 8 rows: ValueError: .*; .* work: give the most rows that it takes as ",
        ),
        (up_to(0, MemoryError("too large")), X, "^a batch of 1 row: MemoryError: too large at "),
        (up_to(2, MemoryError("too large")), X, "a batch of 8 rows: MemoryError: too large at .*; .* rows work$"),
        (
            lambda x: (x + POSITIONS.weight[: x.shape[1]]).sum(1)[:, :3],
            SEQUENCE,
            r"a row at full length \(tokens 40\): .*; shorter rows work: is max_shape too large",
        ),
    ],
)
def test_a_size_or_a_length_that_fails(call, inputs, message):
    assert re.search(message, refused(call, [inputs]))


# made-up rows and samples


def numbers(text):
    return torch.tensor([[float(value) for value in row] for row in text], dtype=torch.float64)


def words(*values):
    return tuple(SampleRow((np.array([value], object),)) for value in values)


INVALID = "if such rows are no valid input, give real rows: "
NO_FIT = "an empty batch raises it, too, so no row can fit: correct the model, or the shapes in model.toml: "


@pytest.mark.parametrize(
    ("call", "inputs", "what", "hint"),
    [
        (numbers, [TEXT], f"ValueError: could not convert string to float: b'' at {__file__}:", INVALID),
        (nn.Embedding(1, 3), [spec("x", "INT64", minimum=5, maximum=9)], "IndexError: index out of range", INVALID),
        (nn.Linear(4, 3), [X], "RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be multiplied", f"{NO_FIT}x [3]"),
    ],
)
def test_a_model_that_raises_on_every_made_up_row_is_unfit(call, inputs, what, hint):
    with pytest.raises(Unfit, match=f"^it raises on every made-up row: {what}") as caught:
        try_out(model(call, inputs))
    assert f"; {hint}" in str(caught.value)


SOUND = spec("x", "FP32", ("samples", 900))


class Waves(nn.Conv1d):
    """Takes at least as many samples of a row as its kernel has."""

    def forward(self, x, mask=None):
        heard = super().forward(x[:, None]).abs()
        return heard.sum(2) if mask is None else (heard * mask[:, None, self.kernel_size[0] - 1 :]).sum(2)


def test_a_model_that_takes_long_rows_alone_is_tried_with_such():
    mask = spec("mask", "FP32", ("samples", 900), mask_of="x")
    assert try_out(model(Waves(1, 3, 400), [SOUND, mask])) == []
    found = refused(Waves(1, 3, 400), [SOUND])
    assert found.startswith("a row's answer depends on how far it is padded: ")
    assert "padded to length 900 (axis 'samples', its own length is 675" in found
    (warning,) = try_out(model(Waves(1, 3, 800), [SOUND]))
    assert warning.startswith("whether its rows are independent is unchecked, it raises on made-up rows: RuntimeError")
    unbounded = replace(SOUND, bounds=(UNBOUNDED,))
    with pytest.raises(Unfit, match=f"Kernel size can't be greater .*; {INVALID}") as caught:
        try_out(model(Waves(1, 3, 400), [unbounded]))
    assert not isinstance(caught.value, NeverFits), "rows may be longer"


def test_a_model_whose_result_is_a_buffer_of_its_own_is_compared_by_what_it_returned():
    buffer = torch.zeros(8, 3)
    assert try_out(model(lambda x: torch.mul(x, 2, out=buffer[: len(x)]))) == []


def test_rows_need_not_come_in_the_order_of_their_lengths():
    gru = nn.GRU(4, 5, batch_first=True)

    def call(x, mask):
        return gru(pack_padded_sequence(x, mask.sum(1), batch_first=True))[1][0]

    mask = spec("mask", "INT64", ("tokens", 40), mask_of="x")
    (warning,) = try_out(model(call, [SEQUENCE, mask], [STATE]))
    assert "`lengths` array must be sorted in decreasing order" in warning


def test_a_model_that_raises_on_a_sample_is_refused():
    assert "a batch of 1 row: ValueError: could not convert" in refused(numbers, [TEXT], [NUMBER], samples=words(b"a"))
    message = refused(numbers, [TEXT], [NUMBER], samples=words(b"1", b"a"))
    assert "row check: the rows of [warmup] in a batch: ValueError" in message


def mean_of_letters(x):
    """It has no space among its letters, and no mask of its padding."""
    letters = [["abcdefghijklmnopqrstuvwxyz".index(letter) for letter in one.decode()] for one in x[:, 0]]
    return np.array([[sum(own) / max(map(len, letters))] for own in letters])


def only_pixels(x):
    """Divided by the largest of the batch."""
    if any(row.max() <= 1 for row in x):
        raise ValueError("expected pixels up to 255")
    return x / x.max()


@pytest.mark.parametrize(
    ("call", "inputs", "outputs"),
    [(mean_of_letters, TEXT, NUMBER), (only_pixels, PIXELS, PIXELS)],
    ids=["texts of one word", "floats above 1"],
)
def test_a_model_that_takes_rows_of_one_kind_alone_is_tried_with_such(call, inputs, outputs):
    assert "a row's answer depends on the other rows" in refused(call, [inputs], [outputs])


def test_parameters_of_samples_reach_the_model():
    def call(x, parameters):
        return x * torch.tensor([[row["gain"]] for row in parameters])

    rows = tuple(SampleRow((np.ones(3, np.float32),), {}, {"gain": gain}) for gain in (2.0, 3.0))
    assert try_out(model(call, takes_parameters=True, samples=rows)) == []
    with pytest.raises(Unfit, match="KeyError"):
        try_out(model(call, takes_parameters=True))


def in_groups(key):
    """A model that runs rows of equal parameters together."""

    def call(x, parameters):
        found, keys = torch.empty_like(x), list(map(key, parameters))
        for one in set(keys):
            rows = [row for row, other in enumerate(keys) if other == one]
            found[rows] = x[rows] * parameters[rows[0]].get("gain", 1.0)
        return found

    return call


def test_parameters_of_one_row_may_be_those_of_rows_with_equal_ones():
    first = refused(lambda x, parameters: x * parameters[0].get("gain", 1.0), takes_parameters=True)
    assert "of the parameters of a batch those of its first row alone are read" in first
    for key in (json.dumps, repr, lambda given: tuple(sorted(given.items()))):
        assert try_out(model(in_groups(key), takes_parameters=True)) == []


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
def test_a_model_that_raises_what_is_no_exception_is_unfit(kind):
    def call(x):
        raise kind("no licence")

    with pytest.raises(Unfit, match=f"{kind.__name__}: no licence"):
        try_out(model(call))


def long_by_company(x):
    return np.array([[b"a" * (100_000 + len(x))]] * len(x), object)


@pytest.mark.parametrize("call", [lambda x: {str(n): x for n in range(100_000)}, long_by_company])
def test_what_is_told_of_a_long_result_is_short(call):
    assert len(refused(call, [X], [TEXT])) < 2_000


# tolerances


@pytest.mark.parametrize("how", ["module", "attribute", "closure"])
def test_the_tolerance_is_that_of_the_weights_wherever_the_model_has_them(how):
    net = nn.Linear(3, 3).half()

    class Wraps:
        def __init__(self):
            self.net = net

        def __call__(self, x):
            return self.net(x.half()).float()

    call = {"module": net, "attribute": Wraps(), "closure": lambda x: net(x.half()).float()}[how]
    assert tolerance_of(model(call)) == TOLERANCES["FP16"]


def test_a_weight_that_holds_nan_is_named():
    linear = nn.Linear(3, 3)
    assert try_out(model(linear)) == []
    with torch.no_grad():
        linear.bias[1] = torch.nan
    assert try_out(model(linear)) == ["weight 'bias' holds NaN: answers that depend on it are NaN"]


@pytest.mark.parametrize("how", [lambda net: lambda x: net(x), lambda net: net.forward])
def test_a_network_in_training_mode_inside_another_object_is_named(how):
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))
    (warning,) = try_out(model(how(net)))
    assert warning == "Dropout is in training mode: call .eval() on the network that the model keeps"
    net.eval()
    assert try_out(model(how(net))) == []


class Remote:
    """As a client of another process, whose methods are those that are called there."""

    __slots__ = ()  # so that it has `__dict__` by `__getattr__`, too

    def __getattr__(self, name):
        return lambda *_: name

    def __call__(self, x):
        return x


def without_fallback():
    try:
        found = nn.Identity()
    except ImportError as error:
        del error
    return lambda x: found(x) if found else error  # noqa: F821 - which is assigned nothing


@pytest.mark.parametrize("call", [Remote(), without_fallback()])
def test_a_model_with_attributes_of_any_name_or_a_variable_without_a_value_is_looked_at(call):
    assert try_out(model(call)) == []


# results of other numbers than rows


@pytest.mark.parametrize(
    "call",
    [
        lambda x: [{"boxes": torch.ones(2, 4), "scores": torch.ones(2)} for _ in x],
        lambda x: torch.ones(5, 3),
        lambda x: torch.cat([x, x]),
        lambda x: [list(x)],
    ],
)
def test_results_by_image_get_the_sentence_that_leads_to_a_way(call):
    assert "where their number differs, as that of boxes by image, pad it (docs/model-code.md" in refused(call)
