"""`starling new` on the command line: what it made, how to serve it, and what is wrong in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.commands import cli, main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_prints_what_it_made_and_how_to_serve_it() -> None:
    result = CliRunner().invoke(cli, ["new", "mine/net"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "mine/net/model.py",
        "mine/net/model.toml",
        "mine/net/request.json",
        "mine/net/test_net.py",
        "",
        "starling serve mine/net",
        "curl localhost:8000/v2/models/net/infer --json @mine/net/request.json",
    ]
    assert os.path.exists("mine/net/model.toml")


def test_what_is_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["starling", "new", "net", "--from", "nosuch"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "starling: from: expected package.module:Class, a model's file or a folder, got 'nosuch'\n"
    )


def test_a_model_that_is_refused_stays_to_be_edited() -> None:
    Path("bag").mkdir()
    Path("bag/model.py").write_text(
        "import torch\nclass Bag:\n    def __call__(self, x):\n        return x - x.mean(0)\nbuild = Bag\n"
    )
    result = CliRunner().invoke(cli, ["new", "net", "--from", "bag", "--input", "x:FP32[3]"])
    assert result.exit_code == 1
    assert "a row's answer depends on the other rows of its batch" in result.stderr
    assert Path("net/model.toml").exists()
