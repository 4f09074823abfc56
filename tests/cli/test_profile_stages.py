"""`profile --stages`: what cutting a model gives; a wrong option is one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models.folders import table, toml_of, write_model

from .running import assert_refused, printed, succeeds

NET = """
from torch import nn
def build(): return nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
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
        self.rnn = nn.RNN(2, 3)
    def forward(self, x): return self.rnn(x.transpose(0, 1))[1][-1]
def build(): return Net()
"""
CELL = toml_of(
    table("inputs", "x", "FP32", '["time", 2]'), table("outputs", "y", "FP32", "[3]"),
    head='source = "model.py:build"\nrecurrent = true',
)  # fmt: skip


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    """The options that name the models, and keep measuring short."""
    write_model(tmp_path / "net", code=NET)
    write_model(tmp_path / "cut", code=STAGED)
    write_model(tmp_path / "cell", CELL, RECURRENT)
    return ("--models", str(tmp_path), "--max-batch", "6", "--budget-s", "0.1", "--threads", "1")


@pytest.mark.parametrize(
    ("name", "asked", "stages", "paste"),
    [
        ("net", ("--cuts", "0", "--cuts", "2"), 3, 'cuts = ["0", "2"]'),
        ("cut", ("--stages", "auto"), 2, ""),
    ],
)
def test_figures_of_one_way_to_cut(
    options: tuple[str, ...], name: str, asked: tuple[str, ...], stages: int, paste: str
) -> None:
    got = printed("profile", name, *asked, *options)
    assert (got["suggested"], got["paste"]) == (stages, paste)
    ((number, times),) = got["slices"].items()
    assert (number, len(times["stages"])) == (str(stages), stages)
    assert list(times["whole_ms"]) == list(times["cuts_cost"]) == ["1", "2", "4", "6"]
    assert {stage["preferred"] for stage in times["stages"]} <= {1, 2, 4, 6}


def test_several_numbers_are_tried_where_none_is_asked_for(options: tuple[str, ...]) -> None:
    got = printed("profile", "net", "--stages", "auto", *options)
    assert list(got["slices"]) == ["2", "3", "4"]  # it has four operators
    slowest = {number: max(stage["batch_ms"]["1"] for stage in one["stages"]) for number, one in got["slices"].items()}
    assert slowest[str(got["suggested"])] == min(slowest.values())
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
