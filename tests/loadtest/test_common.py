"""What all experiments share: options, figures kept as JSON, the page made of them, and nothing of it run twice."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page
from loadtest.common.servers import ServerError

TEXT = """\
# X

{% if seeds|length > 5 %}
Many.
{% endif %}

{{ head("seed", "of") }}
{% for seed in seeds %}
| {{ NAME }} | {{ seed }} |
{% endfor %}

{{ missed }}
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """An experiment, by what measures it and the targets that it misses."""
    (tmp_path / "x.template").write_text(TEXT)
    module = ModuleType("x")
    vars(module).update(NAME="a", __file__=str(tmp_path / "x.py"))
    monkeypatch.setitem(sys.modules, "x", module)

    def experiment(measure: Any, missed: Sequence[str] = (), **more: Any) -> Experiment:
        page = Page("x", "x", lambda data: missed)
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
        "# X\n\n| seed | of |\n| --- | --- |\n| a | 0 |\n| a | 1 |\n| a | 2 |\n\nAll targets are met.\n"
    )


def test_a_page_is_made_again_and_nothing_is_run(made: Any, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"facts": {}, "seeds": [7]}')

    def run_again(chosen: argparse.Namespace, run: Run) -> Data:
        raise AssertionError("measured")

    assert made(run_again).main(["--page", str(tmp_path / "old.json"), "--out", str(tmp_path)]) == 0
    assert "| a | 7 |" in (tmp_path / "x.md").read_text()
    assert made(run_again).main(["--page", str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 1


def test_what_was_kept_before_a_fault_stays(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def half(chosen: argparse.Namespace, run: Run) -> Data:
        run.keep({"seeds": [1]})
        raise ServerError("the server ended")

    assert made(half).main(["--out", str(tmp_path)]) == 1
    assert "the server ended" in capsys.readouterr().err
    assert "| a | 1 |" in (tmp_path / "x.md").read_text()


def test_missed_targets_are_the_status(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = made(seeds, ["too few"])
    assert strict.main(["--out", str(tmp_path)]) == 1
    assert "too few" in capsys.readouterr().err
    assert (tmp_path / "x.json").exists()
    assert "Targets missed:\n\n- too few\n" in (tmp_path / "x.md").read_text()
