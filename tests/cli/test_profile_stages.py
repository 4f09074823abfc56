"""`profile --stages`: what cutting a model gives; a wrong option is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .running import assert_refused, printed, succeeds

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
RECURRENT = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(2, 16)
    def forward(self, x): return self.rnn(x.transpose(0, 1))[1][-1]
build = Net
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
def options(tmp_path: Path) -> tuple[str, ...]:
    """The options that name the models, and keep measuring short."""
    cell = TOML.replace("[16]", '["time", 2]', 1) + "recurrent = true\n"
    for name, code, toml in (("net", MODEL, TOML), ("cut", STAGED, TOML), ("cell", RECURRENT, cell)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(code)
        (tmp_path / name / "model.toml").write_text(toml)
    return ("--models", str(tmp_path), "--max-batch", "6", "--budget-s", "0.1", "--threads", "1")


def check_figures(got: dict[str, Any], stages: int) -> None:
    assert (got["suggested"], list(got["slices"])) == (stages, [str(stages)])
    times = got["slices"][str(stages)]
    assert list(times["whole_ms"]) == list(times["cuts_cost"]) == ["1", "2", "4", "6"]
    assert len(times["stages"]) == stages
    assert all(stage["preferred"] in (1, 2, 4, 6) for stage in times["stages"])


def test_figures_of_one_way_to_cut(options: tuple[str, ...]) -> None:
    for name, asked, stages, paste in (
        ("net", ("--cuts", "0", "--cuts", "2"), 3, 'cuts = ["0", "2"]'),
        ("cut", ("--stages", "auto"), 2, ""),
    ):
        got = printed("profile", name, *asked, *options)
        check_figures(got, stages)
        assert got["paste"] == paste


def test_several_numbers_are_tried_where_none_is_asked_for(options: tuple[str, ...]) -> None:
    got = printed("profile", "net", "--stages", "auto", *options)
    assert list(got["slices"]) == ["2", "3", "4"]  # it has four operators
    longest = {int(number): max(stage["batch_ms"]["1"] for stage in one["stages"])
               for number, one in got["slices"].items()}  # fmt: skip
    assert longest[got["suggested"]] == min(longest.values())
    assert got["paste"] == f"stages = {got['suggested']}"


def test_table(options: tuple[str, ...]) -> None:
    assert succeeds("profile", "net", "--stages", "2", *options).endswith("\n\nstages = 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net", "--stages", "2", "--cuts", "0"), "either --stages or --cuts, got both"),
        (("net", "--stages", "1"), "at least 2 and at most 64, got 1"),
        (("cut", "--stages", "2"), "model 'cut': expected no --stages or --cuts"),
        (("cell", "--stages", "2"), "model 'cell': expected a model to cut, got a recurrent one"),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], arguments: tuple[str, ...], message: str) -> None:
    assert_refused(message, "profile", *arguments, *options)
