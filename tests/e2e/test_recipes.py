"""Every recipe of docs/recipes.md: its files as they stand there, one server of all folders, each curl and its answer.

Python in them runs in this process, which has torch loaded; everything else as a shell would do it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_transformers as tiny

from planner.commands.new_folder import make

from .documented import RECIPES, blocks, commands, curl
from .server import Server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

LONGEST = 15  # lines of a recipe, from the file to curl
HEREDOC = re.compile(r"(cat > (?P<file>\S+)|python) <<'END'\n(?P<text>.*?)^END\n", re.MULTILINE | re.DOTALL)
NLI = {0: "contradiction", 1: "entailment"}
#: Recipes whose weights come from the hub: head and labels of the small weights that stand in for them, where they are
#: looked for first.
FROM_HUB: dict[str, tuple[str, dict[int, str]]] = {
    "Sentences": ("", NLI),
}
KINDS = ["Tabular", "JPEG", "Text", "Sequences", "Export", "ONNX", *FROM_HUB]


def recipes() -> dict[str, tuple[str, str | None]]:
    """The script of each, and the answer that stands below it."""
    _, *scripts = (block for block in blocks(RECIPES) if block.is_shell)  # the first serves them
    return {block.heading: (block.text, block.answer.text if block.answer else None) for block in scripts}


def followed(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a recipe says up to its curl, in this folder; the curl."""
    monkeypatch.chdir(folder)
    rest = HEREDOC.sub("", script).splitlines()
    assert rest[-1].startswith("curl "), rest[-1]
    subprocess.run(["bash", "-ec", "\n".join(rest[:-1])], check=True, timeout=60)
    for found in HEREDOC.finditer(script):
        if found["file"]:
            Path(found["file"]).write_text(found["text"])
        else:
            exec(compile(found["text"], "recipe", "exec"), {"__name__": "recipe"})
    return rest[-1]


def test_there_is_a_short_recipe_for_each_kind() -> None:
    assert list(recipes()) == KINDS
    assert {name: len(script.splitlines()) for name, (script, _) in recipes().items()
            if len(script.splitlines()) > LONGEST} == {}  # fmt: skip


def test_the_first_command_serves_a_folder_that_has_nothing_yet(tmp_path: Path, start: Callable[..., Server]) -> None:
    *_, command = commands(blocks(RECIPES)[0])
    (tmp_path / "mine").mkdir()
    words = command.words[3:]
    assert command.words[:3] == ["starling", "serve", "mine"]
    assert start(flags=("--models", str(tmp_path / "mine"), *words)).get("/v2/health/ready").status == 200


def test_each_recipe_answers_what_it_says(
    tmp_path: Path, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do folders that `starling new` has made."""
    curls = {name: followed(script, tmp_path, monkeypatch) for name, (script, _) in recipes().items()}
    for name, (head, labels) in FROM_HUB.items():
        script, _ = recipes()[name]
        (file,) = (found["file"] for found in HEREDOC.finditer(script))
        source = tomllib.loads(Path(file).read_text())["source"]
        tiny.save_bert(Path(file).parent / source.removeprefix("hf:"), head, id2label=labels)
    Path("net").mkdir()
    Path("net/model.py").write_text("from torch import nn\nbuild = nn.Flatten\n")
    made = [
        make(Path("mine/begun"), "", []),
        make(Path("mine/large"), "net", [{"name": "x", "datatype": "FP32", "shape": [2, 64, 64]}]),
    ]
    server = start(flags=("--models", str(tmp_path / "mine")))
    answers = {name: json.loads(curl(command, server.host, tmp_path)) for name, command in curls.items()}
    for name, (_, told) in recipes().items():
        if told is None:  # weights are drawn anew at each start
            continue
        wanted = json.loads(told)
        for output, value in wanted.items():
            assert answers[name][output] == pytest.approx(value, rel=1e-3), name
        assert list(answers[name]) == list(wanted)
    assert [len(answers["Sequences"]["state"])] == [3]
    assert answers["Sentences"]["object"] == "list"
    (output,) = json.loads(curl(made[0].curl, server.host, tmp_path))["outputs"]
    assert output["shape"] == [1, 3]
    assert len(json.loads(curl(made[1].curl, server.host, tmp_path))["output"]) == 2 * 64 * 64
