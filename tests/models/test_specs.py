"""Tensors: what model.toml says of them, and that the outputs of a model are as declared."""

from __future__ import annotations

import gc
import re
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specs import spec
from torch._subclasses.fake_tensor import FakeTensorMode

from app.contract import DATATYPES, UNBOUNDED
from app.errors import ConfigError
from app.models.base import copied, normalise, one_line, returned, with_server_inputs
from app.models.description.config import model_info, read_config

from .folders import source_of, table, toml_of, write_model

# Invariant: axes, bounds and inputs that the server makes mean one thing, or loading names the key that is unclear.


IDS = table("inputs", "ids", "INT64", '["tokens"]', "max_shape = [300]")
IMAGE = table("inputs", "image", "FP32", '["h", "w", 3]', "max_shape = [64, 48, 3]")
BARE = table("inputs", "bare", "FP32", "[-1, 2, -1]", "max_shape = [9, 2, 8]")
FIXED = table("inputs", "fixed", "FP32", "[2]")
TEXT = table("inputs", "text", "BYTES", '["words"]')
SCORE = table("outputs", "score", "FP32", "[]")


def lengths(of, *lines, datatype="INT64", shape="[]"):
    return table("inputs", "n", datatype, shape, f'lengths = "{of}"', *lines)


def mask(of, *lines, datatype="BOOL", shape='["tokens"]'):
    return table("inputs", "mask", datatype, shape, f'mask = "{of}"', *lines)


def read(tmp_path, *tables):
    folder = write_model(tmp_path / "m", toml_of(*tables))
    return model_info(read_config(folder), source_of(folder))


# inputs that the server makes


@pytest.mark.parametrize(("of", "axis"), [("ids", "tokens"), ("audio", "audio.0")])
def test_lengths_of_an_input(tmp_path, of, axis):
    audio = table("inputs", "audio", "FP32", "[-1, 80]", "max_shape = [9, 80]")
    info = read(tmp_path, IDS, audio, BARE, lengths(of), SCORE)
    made = info.inputs[3]
    assert (made.name, made.lengths_of, made.mask_of, made.made) == ("n", axis, "", True)
    assert (made.shape, made.axes, made.bounds, made.datatype) == ((), (), (), "INT64")


def test_a_mask_has_the_axes_of_its_input(tmp_path):
    info = read(tmp_path, mask("bare", shape="[-1, 2, -1]", datatype="FP16"), BARE, SCORE)
    made, bare = info.inputs
    assert (made.mask_of, made.lengths_of, made.made, bare.made) == ("bare", "", True, False)
    assert (made.shape, made.axes, made.bounds) == (bare.shape, bare.axes, bare.bounds)
    assert made.datatype == "FP16"


@pytest.mark.parametrize(("of", "shape", "bounds"), [("bare", "[-1, -1]", (9, 8)), ("image", '["h", "w"]', (64, 48))])
def test_a_mask_may_have_the_variable_axes_of_its_input_alone(tmp_path, of, shape, bounds):
    made, *others = read(tmp_path, mask(of, shape=shape), BARE, IMAGE, SCORE).inputs
    source = next(other for other in others if other.name == of)
    assert (made.mask_of, made.axes, made.bounds) == (of, tuple(filter(None, source.axes)), bounds)
    lengths = {axis: torch.tensor([1, 2]) for axis in made.axes}
    (given,) = with_server_inputs([made], [], lengths, dict.fromkeys(made.axes, 2))
    assert given.tolist() == [[[True, False], [False, False]], [[True, True], [True, True]]]


@pytest.mark.parametrize("datatype", [name for name, dtype in DATATYPES.items() if dtype.kind in "iu"])
def test_lengths_fit_their_datatype(tmp_path, datatype):
    """300 tokens are too many for eight bits; BF16, whose bits look like integers, holds no lengths at all."""
    tables = IDS, lengths("ids", datatype=datatype), SCORE
    if datatype not in ("UINT8", "INT8", "BF16"):
        assert read(tmp_path, *tables).inputs[1].datatype == datatype
        return
    with pytest.raises(ConfigError, match=r"inputs\[1\]\.datatype: expected .*, got '"):
        read(tmp_path, *tables)


@pytest.mark.parametrize(
    ("made", "key", "expected", "got"),
    [
        (lengths("idz"), "lengths", "an input that clients send ('ids', 'image', 'fixed', 'text')", "'idz'"),
        (lengths("image"), "lengths", "an input with one variable axis", "'image' of shape ['h', 'w', 3]"),
        (lengths("fixed"), "lengths", "an input with a variable axis", "'fixed' of shape [2]"),
        (lengths("text"), "lengths", "an input that is not of type BYTES", "'text'"),
        (lengths("ids", shape="[1]"), "shape", "[] for lengths", "[1]"),
        (lengths("ids", datatype="BOOL"), "datatype", "an integer type for lengths", "'BOOL'"),
        (lengths("ids", datatype="INT8"), "datatype", "a type that holds lengths up to 300", "'INT8'"),
        (lengths("ids", 'mask = "ids"'), "mask", "either lengths or a mask", "both"),
        (mask("idz"), "mask", "an input that clients send", "'idz'"),
        (mask("fixed", shape="[2]"), "mask", "an input with a variable axis", "'fixed' of shape [2]"),
        (mask("text", shape='["words"]'), "mask", "an input that is not of type BYTES", "'text'"),
        (mask("ids", shape='["tokens", 1]'), "shape", "['tokens'], the shape of 'ids'", "['tokens', 1]"),
        (
            mask("image", shape='["h", 3]'),
            "shape",
            "the shape of 'image', or ['h', 'w'], its variable axes",
            "['h', 3]",
        ),
        (mask("ids", datatype="BYTES"), "datatype", "a numeric type or BOOL for a mask", "'BYTES'"),
    ],
)
def test_an_input_that_cannot_be_made_is_one_line(tmp_path, made, key, expected, got):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, IDS, IMAGE, FIXED, TEXT, made, SCORE)
    path, _, message = str(caught.value).partition(": ")
    assert path == str(tmp_path / "m" / "model.toml")
    assert message.startswith(f"inputs[4].{key}: expected ")
    assert expected in message
    assert message.endswith(f"got {got}")


# axes without a bound


def test_an_axis_without_max_shape_has_no_bound(tmp_path):
    audio = table("inputs", "audio", "FP32", "[-1, 80]")
    info = read(tmp_path, audio, FIXED, table("outputs", "y", "FP32", "[-1]"))
    free, fixed = info.inputs
    assert (free.axes, free.bounds, free.bounded, free.count) == (("audio.0", ""), (UNBOUNDED, 80), False, 0)
    assert fixed.bounded
    assert (free.axes_shown(), replace(free, bounds=(9, 80)).axes_shown()) == (["any", "80"], ["any <= 9", "80"])
    assert (info.outputs[0].axes, info.outputs[0].bounds) == (("audio.0",), (UNBOUNDED,))


# outputs


def test_an_outputs_free_axis_among_several_is_not_guessed(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, IDS, BARE, mask("ids"), table("outputs", "y", "FP32", "[4, -1]"))
    assert str(caught.value).endswith(
        "m/model.toml: outputs[0].shape: expected the name of an axis in place of -1, because the inputs have several: "
        "'tokens', shape[0] of 'bare' (give it a name there), shape[2] of 'bare' (give it a name there)"
    )


# Invariant: what passes `returned` and `copied` has the number, order, dtypes and shapes that were declared.


Y = spec("y", "FP32", 3)
Z = spec("z", "INT64")
SEQUENCE = spec("s", "FP32", ("tokens", 8), 2)


Named = namedtuple("Named", ["z", "y"])  # in an order of its own
Others = namedtuple("Others", ["first", "second"])
Half = namedtuple("Half", ["z", "label"])  # else its z would be y


@pytest.mark.parametrize(
    "wrap",
    [
        tuple,
        list,
        lambda pair: {"z": pair[1], "y": pair[0]},
        lambda pair: Named(y=pair[0], z=pair[1]),
        lambda pair: Others(*pair),
    ],
)
def test_all_forms_give_the_declared_order_without_a_copy(wrap):
    y, z = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    values = normalise(wrap((y, z)), [Y, Z])
    assert values[0] is y
    assert values[1] is z


def test_the_named_tuples_of_torch_are_read_by_name():
    least, most = torch.tensor([[1.0, 3.0], [5.0, 4.0]]).aminmax(dim=1)
    values = normalise(torch.return_types.aminmax((least, most)), [spec("max", "FP32"), spec("min", "FP32")])
    assert values == [most, least]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(2, 3), r"expected 2 outputs \['y', 'z'\], got 1"),
        ({"y": torch.ones(1)}, r"output 'z': not returned; the model returned \['y'\]"),
        (Half(1, 2), r"output 'y': not returned; the model returned \['label', 'z'\]"),
        ({"y": 1, "z": 2, "w": 3}, r"expected the outputs \['y', 'z'\], got \['w', 'y', 'z'\]"),
        ({"y": 1, "z": 2, 3: 3}, r"expected the outputs \['y', 'z'\], got \['3', 'y', 'z'\]"),
        (None, "expected a tensor, a tuple or a mapping .* got NoneType"),
        (SimpleNamespace(y=1, z=2), "got SimpleNamespace: return a dict of its fields"),
        ((torch.ones(2, 3), torch.ones(2), None), r"expected 2 outputs .*, got 3, with None: leave it out$"),
    ],
)
def test_normalise_names_what_is_wrong(result, message):
    with pytest.raises(ConfigError, match=message):
        normalise(result, [Y, Z])


@pytest.mark.filterwarnings("error")  # as of a coroutine that nobody has awaited
def test_a_coroutine_or_a_generator_is_no_result():
    async def later():
        return torch.ones(2, 3)

    for result, kind in ((later(), "coroutine"), ((row for row in torch.ones(2, 3)), "generator")):
        with pytest.raises(ConfigError, match=rf"\['y'\], got {kind}: define it without async and yield"):
            normalise(result, [Y])
        del result
    gc.collect()


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (Y, torch.ones(2, 4), r"output 'y': expected shape \[2, 3\], got \[2, 4\]"),
        (Y, torch.ones(1, 3), r"expected shape \[2, 3\], got \[1, 3\]"),
        (Y, torch.ones(2, 3, dtype=torch.float64), r"expected FP32 \(torch.float32\), got torch.float64"),
        (SEQUENCE, torch.ones(2, 6, 2), "the length 5 that the inputs have along axis 'tokens', got 6"),
        (spec("t", "BYTES", 1), torch.ones(2, 1), "expected BYTES"),
        (spec("t", "UINT16", 3), torch.ones(2, 3).bfloat16(), r"UINT16 .*, got torch.bfloat16$"),
        (Y, torch.ones(2, 3).to_sparse(), r"'y': .*, got torch.float32 of layout torch.sparse_coo: .*to_dense\(\)"),
        (Y, torch.ones(2, 3, device="meta"), "a Tensor on meta without values"),
        (Y, FakeTensorMode().from_tensor(torch.ones(2, 3)), "a FakeTensor on cpu without values"),
        (Y, torch.ones(2, 3).to(torch.complex64), r"got torch.complex64: return y.real"),
        (Y, torch.ones(2, 3).to(torch.float8_e4m3fn), r"got torch.float8_e4m3fn$"),
        (Y, torch.nested.nested_tensor([torch.ones(3)] * 2, layout=torch.jagged), "got .* where their number differs"),
        (spec("t", "BYTES", 1), np.array([[1.0], [2.0]]), r"dtype=object.*, got float64"),
        (spec("t", "BYTES"), (["a", "b"],), r"'t': expected an array of text \(numpy.array\(.*object\)\), got list$"),
    ],
)
def test_a_wrong_output_is_named_with_both_sides(declared, value, message):
    with pytest.raises(ConfigError, match=message):
        copied(*returned(value, [declared], 2, {"tokens": 5}), declared, 2)


@pytest.mark.parametrize("kind", [object, str, bytes])
def test_texts_may_be_an_array_of_any_kind_of_them(kind):
    labels = np.array([["yes", "no"], ["no", "yes"]]).astype(kind)
    answer = copied(labels, spec("t", "BYTES", 2), 1)
    assert answer.dtype == object
    assert answer.tolist() == labels[:1].tolist()
    assert {type(text) for text in answer.flat} <= {str, bytes}  # no JSON is made of numpy's own


def test_an_error_of_torchscript_in_one_line_is_its_end():
    class Picky(torch.nn.Module):
        def forward(self, x):
            if bool((x > 0).any()):
                raise ValueError("no number above 0")
            return x @ x.half()

    script, ones = torch.jit.script(Picky()), torch.ones(2, 2)
    for x, message in ((ones, "ValueError: no number above 0"), (-ones, "RuntimeError: .*Half")):
        with pytest.raises(Exception, match="TorchScript interpreter") as caught:
            script(x)
        assert re.fullmatch(rf"(builtins\.)?{message}", one_line(caught.value))


def test_an_error_in_one_line_has_no_colour_codes():
    error = ValueError("load\n\x1b[1monly\x1b[0m what you \x1b[31;1mtrust\x1b[0m")
    assert one_line(error) == "ValueError: load only what you trust"


def test_a_long_error_in_one_line_is_its_beginning_and_its_end():
    """As torch's, which lists each weight that is missing, then each that is unexpected."""
    shown = one_line(ValueError("missing: " + "a, " * 100_000 + "unexpected: b"))
    assert re.fullmatch(r"ValueError: missing: (a, )+a? \.\.\. (, )?(a, )+unexpected: b", shown)
    assert len(shown) < 1100
