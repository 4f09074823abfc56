"""What all experiments share: options, figures kept as JSON, the page made of them, and nothing of it run twice."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.common.processes import spread
from loadtest.common import experiment, plots
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page, filled, grid, standard_error, table
from loadtest.common.servers import ServerError

TEXT = """\
# X

{optional}

{seed_table}

{missed}
"""


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Experiment]:
    """An experiment, by what measures it and the targets that it misses."""
    (tmp_path / "x_page.template").write_text(TEXT)

    def experiment(measure: Any, missed: Sequence[str] = (), **more: Any) -> Experiment:
        page = Page(
            "x",
            str(tmp_path / "x_page.py"),
            lambda data: {"seed_table": table({"seed": str}, data["seeds"]), "optional": ""},
            lambda data: missed,
        )
        options = lambda parser: parser.add_argument("--seeds", type=int, default=2)  # noqa: E731
        return Experiment(page, "loadtest.x", "Text.", measure, options, **more)

    return experiment


def seeds(chosen: argparse.Namespace, run: Run) -> Data:
    return {"seeds": np.arange(chosen.seeds)}


def test_figures_are_kept_and_the_page_is_made_of_them(made: Any, tmp_path: Path) -> None:
    assert made(seeds).main(["--seeds", "3", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "x.json").read_text())
    assert data["seeds"] == [0, 1, 2]
    assert data["facts"]["command"] == "`python -m loadtest.x --seeds 3`"  # without this machine's folder
    assert data["facts"]["cores"]
    assert (tmp_path / "x.md").read_text() == (
        "# X\n\n| seed |\n| --- |\n| 0 |\n| 1 |\n| 2 |\n\nAll targets are met.\n"
    )


def test_a_page_quotes_files_by_their_names() -> None:
    arguments = ["--before", "/home/me/old.json", "--budget=/tmp/a/b", "--rounds", "3", "--page=x/y.json"]
    said = "python -m loadtest.x --before old.json --budget=b --rounds 3 --page=x/y.json"
    assert experiment.command_of("loadtest.x", arguments) == said


def test_a_page_is_made_again_and_nothing_is_run(made: Any, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"facts": {}, "seeds": [7]}')

    def run_again(chosen: argparse.Namespace, run: Run) -> Data:
        raise AssertionError("measured")

    assert made(run_again).main(["--page", str(tmp_path / "old.json"), "--out", str(tmp_path)]) == 0
    assert "| 7 |" in (tmp_path / "x.md").read_text()
    assert made(run_again).main(["--page", str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 1


def test_what_was_kept_before_a_fault_stays(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def half(chosen: argparse.Namespace, run: Run) -> Data:
        run.keep({"seeds": [1]})
        raise ServerError("the server ended")

    assert made(half).main(["--out", str(tmp_path)]) == 1
    assert "the server ended" in capsys.readouterr().err
    assert "| 1 |" in (tmp_path / "x.md").read_text()


def test_missed_targets_are_the_status(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = made(seeds, ["too few"])
    assert strict.main(["--out", str(tmp_path)]) == 1
    assert "too few" in capsys.readouterr().err
    assert (tmp_path / "x.json").exists()
    assert "Targets missed:\n\n- too few\n" in (tmp_path / "x.md").read_text()


@pytest.mark.parametrize(
    "value", [{}, [], {"a": []}, {"a": [1, 2.5, None]}, {"a": [[1], [2]], "b": {"c": [{"d": "é"}, "e"]}}, [1, [2, {}]]]
)
def test_json_keeps_every_value(value: Any, tmp_path: Path) -> None:
    text = "".join(experiment._text(value))
    assert json.loads(text) == value
    experiment.store({"v": value}, tmp_path / "x.json")
    assert experiment.load(tmp_path / "x.json") == {"v": value}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{a[b]:.1f} {times[32]:ms} {list[1]}", "1.5 123 7"),
        ("{many} row{many:plural}, {one} row{one:plural}", "2 rows, 1 row"),
        ("{list:list}; {list:mean}; {list:error}", "5, 7; 6.00; 6.00 ± 1.00"),
    ],
)
def test_fields_of_a_text(template: str, text: str) -> None:
    """Keys of JSON are texts, and formats of our own beside Python's."""
    fields = {"a": {"b": 1.5}, "times": {"32": 123.4}, "list": [5, 7], "many": 2, "one": 1}
    assert filled(template, **fields) == text


def test_tables_by_their_columns() -> None:
    rows = [{"name": "a", "ms": 1.0}, {"name": "b", "ms": 20.0}]
    assert table({"": "`{name}`", "mean": "{ms:ms}", "twice": lambda row: 2 * row["ms"]}, rows) == (
        "|  | mean | twice |\n| --- | --- | --- |\n| `a` | 1.00 | 2.0 |\n| `b` | 20.0 | 40.0 |"
    )
    assert grid("load", ["a"], {1: "one", 2: "two"}, lambda row, column: f"{row}{column}") == (
        "| load | one | two |\n| --- | --- | --- |\n| a | a1 | a2 |"
    )


def test_standard_error() -> None:
    assert standard_error([1.0]) == 0
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)


def test_work_spreads_over_processes_in_order() -> None:
    assert list(spread(abs, [-1, 2, -3], 2)) == [1, 2, 3]
    assert list(spread(abs, [-1, 2], 1)) == [1, 2]


def test_live_latencies_lie_over_simulated_ones(tmp_path: Path) -> None:
    panel = plots.Panel("m", [(2, 10.0), (2, 20.0)], {"ebird": [1, 2, 3, 4]})
    plots.latency_by_request([panel], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
