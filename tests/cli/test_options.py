"""Every command that takes models takes what `starling serve` takes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from models.onnx_graphs import linear

from .running import assert_refused, succeeds

BRIEF = ("--device", "cpu", "--threads", "1", "--budget-s", "0.5", "--max-batch", "32", "--json")
SIZED = ("--rate", "10", "--p99-ms", "900", "--requests", "100", "--device", "cpu", "--json")


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("name", "named", "variable", "place"),
    [
        ("m", ("--model", "m=net.onnx"), "", "net.onnx"),
        ("m", (), "m=net.onnx", "net.onnx"),
        ("net", ("net.onnx",), "", "net.onnx"),
        ("mine", ("lr=1/mine",), "m=net.onnx", "lr=1/mine"),
    ],
)
def test_a_model_without_a_model_toml(
    name: str, named: tuple[str, ...], variable: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by a flag, a variable or a path; nothing of what is written for a while is left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(tmp_path)
    linear(Path("net.onnx"))
    folder = Path("lr=1", "mine")
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    env = {"STARLING_MODEL": variable, "STARLING_PROFILE_DIR": str(tmp_path / "profiles")}
    for command in ("models", "check"):
        listed = succeeds(command, *named, env=env)
        assert f"{name} version 1: " in listed
        assert ("m version 1: " in listed) is (name == "m" or bool(variable))
        assert "echo version 1: " not in listed
    measured = ("profile", *(named if name != "m" else (name, *named)), *BRIEF)
    chosen = ("--model", named[-1]) if named else ()
    assert_refused("no profile of it", "size", *chosen, *SIZED, env=env)
    assert json.loads(succeeds(*measured, env=env))["model"] == name
    assert f"--model {name}={place} " in json.loads(succeeds("size", *chosen, *SIZED, env=env))["command"]
    assert list(scratch.iterdir()) == []
