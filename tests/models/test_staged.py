"""Models in stages: what a factory's Staged takes, and the check that rows are independent at every boundary."""

from __future__ import annotations

import pytest
import torch
from specs import info_of, spec
from torch import nn

from app.contract import Checks, Model
from app.errors import ConfigError
from app.models import Staged

from .folders import loaded, refused, table, toml_of, try_out, write_model

# A factory's Staged: what it takes, what it passes on, and what the loader makes of it.


TOML = toml_of(table("inputs", "x", "FP32", "[2]"), table("outputs", "y", "FP32", "[2]"))


def double(x):
    return x * 2, x


def add(doubled, x):
    return doubled + x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Staged([]), "expected a list of callables"),
        (lambda: Staged(double), "expected a list of callables"),
        (lambda: Staged([double, 3]), "expected a callable as stage 1, got int"),
        (lambda: Staged([double, add], again=[(0,), ()]), "none for the first"),
        (lambda: Staged([double, add], again=[()]), "an entry of `again` for each stage"),
    ],
)
def test_what_is_no_model_in_stages(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (lambda x: {"y": x}, "stage 0: expected a tensor or a tuple of tensors, got dict"),
        (lambda x: (x, 3), "stage 0: value 1: expected a tensor, got int"),
        (lambda x: x.T, r"stage 0: value 0: expected 3 rows first, got shape \[2, 3\]"),
    ],
)
def test_what_a_stage_must_not_pass_on(first, message):
    with pytest.raises(ConfigError, match=message):
        Staged([first, lambda x: x])(torch.ones(3, 2))


def folder_with(tmp_path, stages):
    code = f"from app.models import Staged\nfrom torch import nn\ndef build():\n    return Staged([{stages}])\n"
    return write_model(tmp_path / "m", TOML, code)


def test_a_factory_may_return_stages(tmp_path):
    model = loaded(folder_with(tmp_path, "nn.Linear(2, 2), nn.Dropout(), lambda x: x"))
    assert len(model.stages) == 3
    assert model.stages.again == ((), (), ())
    x = staged = torch.ones(4, 2)
    for stage in model.stages.calls:
        staged = stage(staged)
    assert torch.equal(model.call(x), staged)


def test_a_context_that_is_a_module_belongs_to_the_model():
    """It is loaded, moved and set to evaluation with the model."""
    staged = Staged([nn.Identity(), double], context=nn.Sequential(nn.BatchNorm1d(2))).eval()
    assert "context.0.weight" in staged.state_dict()
    assert not any(module.training for module in staged.parts.context.modules())


def test_stages_that_do_not_fit_are_refused(tmp_path):
    assert "model.toml: inputs: expected as many" in refused(folder_with(tmp_path, "lambda a, b: a, lambda x: x"))


# Rows must be independent at every boundary, and what is wrong says at which stage.


X = spec("x", "FP32", 4)
SEQUENCE = spec("x", "FP32", ("t", 32), 2)
MASK = spec("mask", "FP32", ("t", 32), mask_of="x")
Y = spec("y", "FP32", 4)
SUM = spec("y", "FP32")


def model(*stages, inputs=(X,), outputs=(Y,), again=()):
    staged = Staged(stages, again)
    info = info_of(inputs, outputs, max_batch=8)
    return Model(info, staged, stages=staged.parts, checks=Checks(row_check="refuse"))


def twice(x):
    return x * 2


def centred(x):
    """The batch's mean goes into each row."""
    return x - x.mean(0)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((twice, centred, twice), "depends on the other rows of its batch: output 'stage 1': "),
        ((twice, lambda x: (x, centred(x)), lambda x, y: x), "output 'stage 1, value 1': "),
    ],
)
def test_a_stage_that_looks_at_other_rows_is_named(stages, message):
    with pytest.raises(ConfigError, match=message):
        try_out(model(*stages))


def test_nan_of_a_neighbour_must_not_spread():
    """The difference to a neighbour, times 0, is nothing but for a neighbour of NaN."""
    with pytest.raises(ConfigError, match=r"output 'stage 1, y': .* with NaN and infinity in"):
        try_out(model(twice, lambda x: x + 0 * x.sum(0)))


# lengths


def test_a_mask_of_the_other_sign_goes_wrong_where_rows_join():
    """1 marks padding: what is padded with 0 where a row joins a longer one counts. Whole batches are right."""

    stages = (
        lambda x, mask: (x * 2 + 1, 1 - mask),
        lambda hidden, padding: (hidden + 1, padding),
        lambda hidden, padding: (hidden * (1 - padding)[..., None]).sum((1, 2)),
    )
    given = {"inputs": (SEQUENCE, MASK), "outputs": (SUM,)}
    message = "how far it is padded: output 'stage 2, y': .* padded to length 16 .* at stage 1"
    with pytest.raises(ConfigError, match=message):
        try_out(model(*stages, **given))
    stages = lambda x, m: x * 2 + 1, lambda h: h + 1, lambda h, m: (h * m[..., None]).sum((1, 2))
    assert try_out(model(*stages, again=[(), (), (1,)], **given)) == []


@pytest.mark.parametrize(
    ("first", "second", "got"),
    [
        (lambda x: x[:, ::2], lambda h: h.sum((1, 2)), r"\[1, 8, 2\] of a row of {'t': 16}, \[1, 4, 2\] of a row of"),
        (lambda x: x @ x.mT, lambda h: h.diagonal(dim1=1, dim2=2).sum(1), r"\[1, 16, 16\] of .*, \[1, 8, 8\] of"),
    ],
)
def test_what_cannot_be_joined_between_stages_says_so(first, second, got):
    message = f"^stage 0: value 0: expected a second axis as long as 't' .*, got {got} .*: cut the model elsewhere$"
    with pytest.raises(ConfigError, match=message):
        try_out(model(first, second, inputs=(SEQUENCE,), outputs=(SUM,)))
