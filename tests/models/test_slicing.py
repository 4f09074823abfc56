"""model.toml's `cuts` and `stages`: the stages answer as the whole does, or one line says why it cannot be cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.contract import Model
from app.errors import ConfigError
from app.models.loading import load

from .folders import source_of, try_out, write_model

CODE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, width=8, blocks=4):
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 3)
        self.unused = nn.Linear(2, 2)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build(**kwargs):
    torch.manual_seed(0)
    return Net(**kwargs)
"""
TOML = """
source = "model.py:build"
{extra}
inputs = [{{ name = "x", datatype = "FP32", shape = [3] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [3] }}]
"""


def loaded(folder: Path, extra: str, code: str = CODE, toml: str = TOML) -> Model:
    return load(source_of(write_model(folder / "m", toml.format(extra=extra), code)))


def stage_by_stage(model: Model, *inputs: torch.Tensor):
    inputs = (*inputs, *(model.context(*inputs) if model.context else ()))
    result = model.stages[0](*inputs[: len(model.info.inputs)], *(inputs[place] for place in model.again[0]))
    for stage, again in zip(model.stages[1:], model.again[1:], strict=True):
        passed = (result,) if isinstance(result, torch.Tensor) else result
        result = stage(*passed, *(inputs[place] for place in again))
    return result


def assert_same(model: Model, *inputs: torch.Tensor) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(stage_by_stage(model, *inputs), model.call(*inputs))


def test_cuts_after_submodules(tmp_path):
    model = loaded(tmp_path, 'cuts = ["blocks.2", "stem"]')
    assert len(model.stages) == 3
    for size in (1, 2, 5, 33):
        assert_same(model, torch.randn(size, 3))
    shapes = [value.shape for value in torch.nn.Module.parameters(model.stages[0])]
    assert shapes == [(8, 3), (8,)]
    assert try_out(model) == []


def test_stages_have_the_weights_of_the_whole(tmp_path):
    model = loaded(tmp_path, 'cuts = ["blocks.1"]')
    whole = {id(weight) for weight in model.call.parameters()}
    for stage in model.stages:
        assert {id(weight) for weight in stage.parameters()} <= whole


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_stages_of_equal_time(tmp_path, stages: int):
    model = loaded(tmp_path, f"stages = {stages}")
    assert len(model.stages) == stages
    assert_same(model, torch.randn(7, 3))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('cuts = ["blocks.7"]', r"cuts: expected the name of a submodule, like blocks\.\d.*, got 'blocks.7'"),
        ('cuts = ["unused"]', "cuts: expected a submodule that computes something, got 'unused'"),
        ('cuts = ["head"]', "cuts: expected a submodule that something follows, got 'head'"),
        ('cuts = ["stem", "stem"]', "cuts: expected cuts that differ"),
        ("cuts = []", "cuts: expected"),
        ('cuts = [""]', r"cuts\[0\]: expected"),
        ("cuts = 3", "cuts: expected"),
        ("stages = 1", "stages: expected"),
        ('stages = "two"', "stages: expected"),
        ('stages = 2\ncuts = ["stem"]', "stages: expected either stages or cuts, got both"),
        ("stages = 60", "stages: expected fewer stages, got 60"),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path, extra: str, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        loaded(tmp_path, extra)
    assert str(caught.value).startswith(f"{tmp_path / 'm' / 'model.toml'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return lambda x: x", "expected a source that returns an nn.Module, got function"),
        ("from app.models import Staged\n    return Staged([Block(3), Block(3)])", "expected none for a source that"),
    ],
)
def test_what_cannot_be_sliced_is_said(tmp_path, body: str, message: str):
    with pytest.raises(ConfigError, match=f"stages: {message}"):
        loaded(tmp_path, "stages = 2", f"{CODE}\ndef build():\n    {body}\n")


def test_stages_of_text_are_refused(tmp_path):
    toml = TOML.replace('"FP32"', '"BYTES"', 1)
    with pytest.raises(ConfigError, match=r"inputs\[0\]\.datatype: expected numbers for a model in stages, got BYTES"):
        loaded(tmp_path, "stages = 2", toml=toml)


def test_a_cut_before_the_first_weight_is_refused(tmp_path):
    code = CODE.replace("        x = self.stem(x)", "        x = self.scaled(x)\n        x = self.stem(x)").replace(
        "self.unused", "self.scaled = nn.ReLU()\n        self.unused"
    )
    with pytest.raises(ConfigError, match="got 'scaled': all that comes before it follows from the inputs without"):
        loaded(tmp_path, 'cuts = ["scaled"]', code)


def test_a_model_of_one_batch_size_says_why_and_what_to_do(tmp_path):
    code = CODE.replace("return self.head(x)", "return self.head(x.reshape(4, -1)[:, :8]) if len(x) == 4 else x[:, :3]")
    code += "\nclass Fixed(Net):\n    def forward(self, x):\n        return super().forward(x).view(3, 3)\n"
    code += "\ndef build():\n    return Fixed()\n"
    with pytest.raises(ConfigError, match=r"expected a model that torch\.export takes .*Take sizes from x\.shape"):
        loaded(tmp_path, "stages = 2", code)


def test_a_model_that_branches_on_values_says_so(tmp_path):
    code = CODE.replace("return self.head(x)", "return self.head(x) if x.sum() > 0 else -self.head(x)")
    with pytest.raises(ConfigError, match=r"got \w+.*branch on no values"):
        loaded(tmp_path, "stages = 2", code)


def test_stages_that_answer_otherwise_are_refused(tmp_path):
    """What torch.export does not see: state of the module's own that changes with each call."""
    code = CODE.replace(
        "        return self.head(x)",
        "        self.calls = getattr(self, 'calls', 0) + 1\n        return self.head(x) + self.calls",
    )
    with pytest.raises(ConfigError, match="expected stages that answer as the whole does, got output 'y'"):
        loaded(tmp_path, 'cuts = ["stem"]', code)


def test_a_model_that_raises_on_made_up_rows_is_sliced_and_not_compared(tmp_path, caplog):
    code = CODE.replace(
        "        x = self.stem(x)",
        "        if not torch.compiler.is_compiling(): raise ValueError('no such id')\n        x = self.stem(x)",
    )
    model = loaded(tmp_path, "stages = 2", code)
    assert len(model.stages) == 2
    assert "not compared with the whole, which raises on made-up rows: ValueError: no such id" in caplog.text


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
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(3))
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


@pytest.mark.parametrize(
    "extra",
    [
        'cuts = ["layers.0", "layers.1"]',
        'cuts = ["embed", "sequence_first"]',
        'cuts = ["layers.1.linear1", "sequence_first.linear1"]',
        "stages = 4",
    ],
)
def test_masks_are_made_anew_at_each_stage(tmp_path, extra: str):
    """The row check joins rows of other lengths at each stage: a mask that went along, padded with 0, breaks it."""
    model = loaded(tmp_path, extra, ENCODER, SEQUENCES)
    for size, length in ((1, 1), (1, 24), (5, 9), (32, 3)):
        mask = torch.arange(length)[None] < torch.randint(1, length + 1, (size, 1))
        assert_same(model, torch.randint(0, 10, (size, length)), mask)
    assert try_out(model) == []


def test_outputs_by_name_stay_so(tmp_path):
    code = CODE.replace("return self.head(x)", "return {'z': x.sum(1), 'y': self.head(x)}")
    toml = TOML + "[[outputs]]\nname = 'z'\ndatatype = 'FP32'\nshape = []\n"
    toml = toml.replace('outputs = [{{ name = "y", datatype = "FP32", shape = [3] }}]', "").replace(
        "[[outputs]]", "[[outputs]]\nname = 'y'\ndatatype = 'FP32'\nshape = [3]\n[[outputs]]"
    )
    model = loaded(tmp_path, 'cuts = ["blocks.0"]', code, toml)
    assert sorted(stage_by_stage(model, torch.randn(2, 3))) == ["y", "z"]


def test_a_recurrent_model_is_not_cut(tmp_path):
    code = """
from torch import nn
from app.models import Recurrent
class Sum(nn.Module):
    def step(self, x, state): return x + state[0], (x + state[0],)
def build(): return Recurrent(Sum(), state=((3,),))
"""
    toml = TOML.replace("shape = [3] }}]\noutputs", "shape = ['t', 3], max_shape = [4, 3] }}]\noutputs")
    with pytest.raises(ConfigError, match="stages: expected none for a recurrent model, got 2"):
        loaded(tmp_path, "stages = 2", code, toml)
