"""model.toml's `cuts` and `stages`: the stages answer as the whole does, or one line says why it cannot be cut."""

from __future__ import annotations

import re

import pytest
import torch

from app.models.checks.trial import network_warning

from .folders import loaded, refused, try_out, write_model

CODE = """
import torch
from torch import nn

class Block(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
    def forward(self, x):
        return x + super().forward(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.stem, self.head, self.unused = nn.Linear(3, 8), nn.Linear(8, 3), nn.Linear(2, 2)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Net()
"""
TOML = """
source = "model.py:build"
{extra}
inputs = [{{ name = "x", datatype = "FP32", shape = [3] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [3] }}]
"""


def folder_with(tmp_path, extra, code=CODE, toml=TOML):
    return write_model(tmp_path / "m", toml.format(extra=extra), code)


def cut(*args, **more):
    return loaded(folder_with(*args, **more))


def stage_by_stage(model, *inputs):
    result = inputs
    for number, stage in enumerate(model.stages.calls):
        passed = (result,) if isinstance(result, torch.Tensor) else result
        given = model.stages.arguments(number, passed, model.stages.given(inputs))
        result = stage(*(value.clone() for value in given))  # as when serving
    return result


def assert_same(model, *inputs):
    with torch.inference_mode():
        torch.testing.assert_close(stage_by_stage(model, *inputs), model.call(*(value.clone() for value in inputs)))


def test_cuts_after_submodules(tmp_path):
    model = cut(tmp_path, 'cuts = ["blocks.2", "stem"]')
    assert len(model.stages) == 3
    for size in (1, 2, 5, 33):
        assert_same(model, torch.randn(size, 3))
    assert [value.shape for value in model.stages.calls[0].parameters()] == [(8, 3), (8,)]
    assert try_out(model) == []


@pytest.mark.parametrize(
    "body",
    [
        "x = self.stem(x)\n        y = x[:, :3]\n        x += self.blocks[0](x)\n        return self.head(x) + y",
        "x = self.blocks[0](self.stem(x))\n        x[:, 0] = 0\n        return self.head(x)",
        "h = self.blocks[0](self.stem(x))\n        x *= 2\n        return self.head(h) + self.stem(x)[:, :3]",
        "x = self.blocks[0](self.stem(x))\n        return self.head(torch.pow(2, x, out=torch.empty_like(x)))",
        "x = self.blocks[0](self.stem(x))\n        torch._foreach_add_([x], 1.0)\n        return self.head(x)",
    ],
    ids=["a view crosses", "a slice", "the input", "out=", "a list"],
)
def test_what_a_model_writes_in_place_is_read_by_later_stages(tmp_path, body):
    code = re.sub("x = self.stem.*self.head.x.", body, CODE, flags=re.DOTALL)
    assert_same(cut(tmp_path, 'cuts = ["blocks.0"]', code), torch.randn(3, 3))


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_stages_of_equal_time(tmp_path, stages):
    model = cut(tmp_path, f"stages = {stages}")
    assert len(model.stages) == stages
    assert_same(model, torch.randn(7, 3))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('cuts = ["blocks.7"]', r"cuts: expected the name of a submodule, like blocks\.\d.*, got 'blocks.7'"),
        ('cuts = ["unused"]', "cuts: expected a submodule that computes something, got 'unused'"),
        ('cuts = ["head"]', "cuts: expected a submodule that something follows, got 'head'"),
        ("stages = 1", "stages: expected"),
        ('stages = 2\ncuts = ["stem"]', "stages: expected either stages or cuts, got both"),
        ("stages = 60", "stages: expected fewer stages, got 60"),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path, extra, message):
    folder = folder_with(tmp_path, extra)
    text = refused(folder)
    assert text.startswith(f"{folder / 'model.toml'}: ")
    assert re.search(message, text)


RECURRENT = """
from torch import nn
from app.models import Recurrent
class Sum(nn.Module):
    def step(self, x, state): return x + state[0], (x + state[0],)
def build(): return Recurrent(Sum(), state=((3,),))
"""
SAMPLED = TOML.replace("shape = [3] }}]\noutputs", "shape = ['t', 3], max_shape = [4, 3] }}]\noutputs")
HEAD = "        return self.head(x)"


@pytest.mark.parametrize(
    ("code", "toml", "message"),
    [
        (f"{CODE}\ndef build():\n    return lambda x: x\n", TOML, "stages: expected a source that returns an nn.Mod"),
        (
            f"{CODE}\nfrom app.models import Staged\ndef build():\n    return Staged([Block(3), Block(3)])\n",
            TOML,
            "stages: expected none for a source that returns Staged",
        ),
        (RECURRENT, SAMPLED, "stages: expected none for a recurrent model, got 2"),
        (CODE.replace(HEAD, f"{HEAD} if x.sum() > 0 else -self.head(x)"), TOML, "branch on no values"),
        # what torch.export does not see: state of the module's own that changes with each call
        (
            CODE.replace(HEAD, f"        self.calls = getattr(self, 'calls', 0) + 1\n{HEAD} + self.calls"),
            TOML,
            "expected stages that answer as the whole does, got output 'y'",
        ),
    ],
    ids=["function", "staged", "recurrent", "branch", "state"],
)
def test_what_cannot_be_cut(tmp_path, code, toml, message):
    assert message in refused(folder_with(tmp_path, "stages = 2", code, toml))


def test_weights_that_stages_share_with_the_whole_are_looked_at_once(tmp_path, monkeypatch):
    model, looked = loaded(folder_with(tmp_path, "stages = 2")), []
    monkeypatch.setattr(torch.Tensor, "isnan", lambda value: looked.append(value) or torch.zeros(1, dtype=torch.bool))
    assert network_warning(model) is None
    assert len(looked) == len(list(model.call.parameters()))


def test_a_cut_before_the_first_weight_is_refused(tmp_path):
    code = CODE.replace("x = self.stem(x)", "x = self.stem(self.scaled(x))")
    code = code.replace("        super().__init__()\n", "        super().__init__()\n        self.scaled = nn.ReLU()\n")
    text = refused(folder_with(tmp_path, 'cuts = ["scaled"]', code))
    assert "got 'scaled': all that comes before it follows from the inputs without" in text


def test_a_model_that_raises_on_made_up_rows_is_sliced_and_not_compared(tmp_path, caplog):
    raises = "        if not torch.compiler.is_compiling(): raise ValueError('no such id')\n"
    code = CODE.replace("        x = self.stem(x)", f"{raises}        x = self.stem(x)")
    model = cut(tmp_path, "stages = 2", code)
    assert len(model.stages) == 2
    assert "not compared with the whole, which raises: ValueError: no such id" in caplog.text


# lengths

SEQUENCES = """
source = "model.py:build"
{extra}
inputs = [
  {{ name = "ids", datatype = "INT64", shape = ["t"], max_shape = [24], minimum = 0, maximum = 9 }},
  {{ name = "mask", datatype = "BOOL", shape = ["t"], mask = "ids" }},
]
outputs = [{{ name = "y", datatype = "FP32", shape = [8] }}]
"""
ENCODER = """
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2))
        self.sequence_first = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=False)
    def forward(self, ids, mask):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        x = self.sequence_first(x.transpose(0, 1), src_key_padding_mask=~mask)
        weight = mask[..., None].float()
        return (x.transpose(0, 1) * weight).sum(1) / weight.sum(1).clamp(min=1)

def build():
    torch.manual_seed(0)
    return Encoder()
"""


def test_masks_are_made_anew_at_each_stage(tmp_path):
    """The row check joins rows of other lengths at each stage: a mask that went along, padded with 0, breaks it."""
    model = cut(tmp_path, 'cuts = ["layers.1.linear1", "sequence_first.linear1"]', ENCODER, SEQUENCES)
    for size, length in ((1, 1), (1, 24), (5, 9), (32, 3)):
        mask = torch.arange(length)[None] < torch.randint(1, length + 1, (size, 1))
        assert_same(model, torch.randint(0, 10, (size, length)), mask)
    assert try_out(model) == []


def test_a_length_that_is_not_beside_the_rows_crosses_no_cut(tmp_path):
    conv = "self.conv(self.embed(ids).transpose(1, 2)).transpose(1, 2)"
    code = ENCODER.replace("x = self.embed(ids)", f"x = {conv}").replace(
        "        self.layers =", "        self.conv = nn.Conv1d(8, 8, 1)\n        self.layers ="
    )
    text = refused(folder_with(tmp_path, 'cuts = ["conv"]', code, SEQUENCES))
    assert text.endswith("would have to go over it: rows must come first, and only the next axis may vary")
