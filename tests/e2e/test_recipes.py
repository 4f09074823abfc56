"""Every recipe of docs/recipes.md: its files as they stand there, one server of all folders, each curl and its answer.

Python in them runs in this process, which has torch loaded; everything else as a shell would do it. And
what examples/sklearn says of itself.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_transformers as tiny

from planner.commands.new_folder import make

from .documented import GIVEN, RECIPES, blocks, commands, curl
from .server import ROOT, Server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def recipes() -> dict[str, tuple[str, str | None]]:
    """The script of each, and the answer that stands below it."""
    _, *scripts = (block for block in blocks(RECIPES) if block.is_shell)  # the first serves them
    return {block.heading: (block.text, block.answer) for block in scripts}


def followed(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a recipe says up to its curl, in this folder; the curl."""
    monkeypatch.chdir(folder)
    rest = GIVEN.sub("", script).splitlines()
    assert rest[-1].startswith("curl "), rest[-1]
    subprocess.run(["bash", "-ec", "\n".join(rest[:-1])], check=True, timeout=60)
    for found in GIVEN.finditer(script):
        if found["file"]:
            Path(found["file"]).write_text(found["text"])
        else:
            exec(compile(found["text"], "recipe", "exec"), {"__name__": "recipe"})
    return rest[-1]


def test_each_recipe_answers_what_it_says(tmp_path, start, monkeypatch) -> None:
    """And so do folders that `starling new` has made."""
    told = recipes()
    curls = {name: followed(script, tmp_path, monkeypatch) for name, (script, _) in told.items()}
    weights = re.findall(r"hf:([^\"]+)", Path("mine/sentences/model.toml").read_text())  # small ones stand in for those
    tiny.save_bert(Path("mine/sentences", *weights), "", id2label={0: "contradiction", 1: "entailment"})
    Path("net").mkdir()
    Path("net/model.py").write_text("from torch import nn\nbuild = nn.Flatten\n")
    made = [
        make(Path("mine/begun"), "", []),
        make(Path("mine/large"), "net", [{"name": "x", "datatype": "FP32", "shape": [2, 64, 64]}]),
    ]
    server = start(flags=("--models", str(tmp_path / "mine")))
    answers = {name: json.loads(curl(command, server.host, tmp_path)) for name, command in curls.items()}
    for name, (_, answer) in told.items():
        if answer is not None:  # else weights are drawn anew at each start
            wanted = json.loads(answer)
            assert list(answers[name]) == list(wanted)
            for output, value in wanted.items():
                assert answers[name][output] == pytest.approx(value, rel=1e-3), name
    assert [len(answers["Sequences"]["state"])] == [3]
    assert answers["Sentences"]["object"] == "list"
    (output,) = json.loads(curl(made[0].curl, server.host, tmp_path))["outputs"]
    assert output["shape"] == [1, 3]
    assert len(json.loads(curl(made[1].curl, server.host, tmp_path))["output"]) == 2 * 64 * 64


def test_an_estimator_of_scikit_learn(tmp_path: Path, start: Callable[..., Server]) -> None:
    folder = shutil.copytree(ROOT / "examples" / "sklearn", tmp_path / "sklearn")
    fitted = runpy.run_path(str(folder / "fit.py"))
    server = start(flags=("--models", str(folder)))
    table, classifier = fitted["table"], fitted["classifier"]
    *_, asks = commands(blocks("examples/sklearn/README.md")[0])
    assert json.loads(curl(asks.text, server.host, tmp_path))["label"] == 1
    reply = server.post("/v1/models/sklearn:predict", {"instances": table.to_dict("records")})
    answers = reply.json()["predictions"]
    assert [one["label"] for one in answers] == classifier.predict(table).tolist()
    assert np.allclose([one["scores"] for one in answers], classifier.predict_proba(table), atol=1e-6)
    body = {"inputs": [{"name": "city", "datatype": "BYTES", "shape": [1], "data": ["Rom"]},
                       {"name": "area", "datatype": "FP64", "shape": [1], "data": [20]},
                       {"name": "rooms", "datatype": "INT64", "shape": [1], "data": [1.5]}]}  # fmt: skip
    assert "(rooms).data: expected INT64 values" in server.post("/v2/models/sklearn/infer", body).error
