"""The command `slice`: what cutting a model gives; a wrong option is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from app.cli import slice as slicecli
from app.cli.slice import Times
from app.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n"
MODEL = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
"""
STAGED = """
from app.models import Staged
def build(): return Staged([lambda x: x * 2, lambda x: x + 1])
"""
TOML = """
source = "model.py:build"
inputs = [{ name = "x", datatype = "FP32", shape = [16] }]
outputs = [{ name = "y", datatype = "FP32", shape = [16] }]
"""


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in (("net", MODEL), ("cut", STAGED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(code)
        (tmp_path / name / "model.toml").write_text(TOML)
    return tmp_path


def invoke(folder: Path, *arguments: str) -> Result:
    cli = typer.Typer()
    slicecli.register(cli)
    cli.command("other")(lambda: None)
    given = ("slice", *arguments, "--models", str(folder), "--max-batch", "6", "--repeats", "2", "--threads", "1")
    return CliRunner().invoke(cli, given)


def printed(folder: Path, *arguments: str) -> Any:
    result = invoke(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [(("net", "--stages", "2"), 2), (("net", "--cuts", "0", "--cuts", "2"), 3), (("cut",), 2)],
)
def test_figures_of_one_way_to_cut(folder: Path, arguments: tuple[str, ...], stages: int):
    got = printed(folder, *arguments)
    assert (got["suggested"], list(got["slices"])) == (stages, [str(stages)])
    times = got["slices"][str(stages)]
    assert list(times["whole_ms"]) == list(times["cuts_cost"]) == ["1", "2", "4", "6"]
    assert len(times["stages"]) == stages
    assert all(stage["preferred"] in (1, 2, 4, 6) for stage in times["stages"])


def test_several_numbers_are_tried_where_none_is_asked_for(folder: Path):
    got = printed(folder, "net")
    assert list(got["slices"]) == ["2", "3", "4"]  # it has four operators
    assert str(got["suggested"]) in got["slices"]


def test_table_and_plot(folder: Path):
    path = folder / "plot.png"
    result = invoke(folder, "net", "--stages", "2", "--plot", str(path))
    assert result.exit_code == 0, result.output
    assert "stage 1" in result.stdout
    assert "preferred" in result.stdout
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net", "--stages", "2", "--cuts", "0"), "either --stages or --cuts, got both"),
        (("net", "--stages", "1"), "expected at least 2, got 1"),
        (("net", "--stages", "9"), "model 'net': stages: expected fewer stages, got 9"),
        (("net", "--cuts", "7"), "model 'net': cuts: expected the name of a submodule, like"),
        (("cut", "--stages", "2"), "model 'cut': expected no --stages or --cuts"),
        (("none",), "model 'none' is not known"),
        (("net", "--plot", "/no/such/place.png"), "no such folder"),
    ],
)
def test_a_wrong_option_is_one_line(folder: Path, arguments: tuple[str, ...], message: str):
    error = invoke(folder, *arguments).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_recurrent_model_is_not_cut(folder: Path):
    code = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    code += "        self.rnn = nn.RNN(2, 4)\n    def forward(self, x): return self.rnn(x.transpose(0, 1))[1][-1]\n"
    (folder / "net" / "model.py").write_text(code + "def build(): return Net()\n")
    (folder / "net" / "model.toml").write_text(
        TOML.replace("[16]", '["time", 2]', 1).replace("[16]", "[4]") + "recurrent = true\n"
    )
    result = invoke(folder, "net", "--stages", "2")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "model 'net': expected a model to cut, got a recurrent one, run by its cell"


def test_what_is_derived_from_times():
    times = Times({1: 2.0, 2: 3.0, 4: 4.0}, [{1: 1.0, 2: 1.0, 4: 1.0}, {1: 1.1, 2: 2.1, 4: 4.1}])
    assert times.cost(1) == pytest.approx(0.05)
    assert [times.preferred(stage) for stage in (0, 1)] == [4, 1]
