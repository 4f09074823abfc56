"""How each kind of command in the documentation is run, and each block that is none, such as a program in Python.

What needs a container engine, a cluster, a GPU, an index of packages or minutes is not run: its files and flags are
there. Files of models are those that the server of the pages has. Other blocks are not looked at.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import typer
from torch import nn

from app.cli.commands import cli
from app.scheduler.estimates.profile_format import parse as parse_profile

from .documented import Block, Command, alike, curl, same_lines
from .documented_world import World, given_file
from .server import ROOT

Rule = Callable[[Command, World], None]
BlockRule = Callable[[Block, World], object]


def rule_of(command: Command) -> Rule:
    """How this command is run: the first rule whose pattern its beginning fits. All others are looked at."""
    return next((rule for pattern, rule in RULES if re.match(pattern, command.text)), is_looked_at)


def answers(command: Command, world: World) -> None:
    """A request to the shared server: status 200, and the answer that the page shows."""
    printed = curl(command.text, world.server.host, world.folder)
    json.loads(printed)
    if command.answer is not None:
        assert alike(command.answer, printed), f"{command}: the answer was\n{printed}"
    if command.text.endswith("/unload"):  # others ask for the model, too
        curl(command.text.removesuffix("unload") + "load", world.server.host, world.folder)


def writes_a_text(command: Command, world: World) -> None:
    """A text of a model that knows none, or what comes as events: the page's has the same fields."""
    printed = curl(command.text, world.server.host, world.folder)
    assert command.answer is not None, f"{command}: no output stands below it"
    told, got = ([list(json.loads(one)) for one in text.split("data: ") if one] for text in (command.answer, printed))
    assert (told[0], told[-1]) == (got[0], got[-1]), f"{command}: the answer was\n{printed}"


def prints(command: Command, world: World) -> None:
    """A command whose output is the same each time, line by line."""
    done = world.starling(*command.words[1:])
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    assert command.answer is not None, f"{command}: no output stands below it"
    assert same_lines(command.answer, done.stdout), f"{command}: it prints\n{done.stdout}"


def makes_a_folder(command: Command, world: World) -> None:
    """`starling new`, beside the folder of that name which the server has; its curl is what it ends with."""
    shutil.rmtree(world.folder / "made", ignore_errors=True)  # of another page
    done = world.starling(*[word.replace("mine/", "made/", 1) for word in command.words[1:]])
    assert done.exit_code == 0, f"{command}: {done.output}"
    assert "curl localhost:8000/v2/models/" in done.output


def writes(command: Command, world: World) -> None:
    """A file of a model, which the world has made of this very command."""
    if given := given_file(command):
        assert (world.folder / given[0]).read_text(encoding="utf-8") == given[1]
    else:
        assert (world.folder / command.words[-1]).is_dir(), command


def is_looked_at(command: Command, world: World) -> None:
    """A command that is not run: its files and its flags are there."""
    words = command.words
    known = "|".join(path.name for path in ROOT.iterdir() if not path.name.startswith("."))
    for word in words:
        if re.fullmatch(rf"(\./)?({known})/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{command}: {word}"
    if words[0] == "starling":
        check_flags(words)
    elif words[:2] == ["python", "-m"] and words[2].startswith("loadtest"):
        assert importlib.util.find_spec(words[2]), command
    elif words[:2] == ["docker", "build"]:
        assert (ROOT / "Dockerfile").exists()


def check_flags(words: list[str]) -> None:
    """The flags of a `starling` command are flags that it has. Raises AssertionError."""
    group = typer.main.get_command(cli)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands.get(words[1])
    assert command is not None, f"no command {words[1]}"
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words[2:]:
        if word.startswith("-"):
            assert word.partition("=")[0] in {*known, "--help"}, f"starling {words[1]} has no {word}"


RULES: tuple[tuple[str, Rule], ...] = (
    (r"curl (-N )?localhost:8000/\S*writer\S*", writes_a_text),
    ("curl ", answers),
    ("mkdir -p mine/|cat > mine/", writes),
    ("starling (simulate|optimum) ", prints),
    ("starling new ", makes_a_folder),
)


# blocks that are no commands


def block_rule(one: Block) -> BlockRule | None:
    """What is done with a block that is no command, by the first rule for its page whose pattern its beginning fits."""
    return next((run for page, begins, run in BLOCK_RULES if page == one.page and re.match(begins, one.text)), None)


def executed(one: Block, world: World, **given: Any) -> dict[str, Any]:
    """Run in a namespace of its own, against the shared server."""
    namespace: dict[str, Any] = {"__name__": "documented", **given}
    exec(compile(one.text.replace("localhost:8000", world.server.host), str(one), "exec"), namespace)
    return namespace


def measures(one: Block, world: World) -> None:
    short = one.text.replace("repeats=5", "repeats=2, duration_s=0.2, warmup_s=0.1, max_lag_ms=1e5")
    assert short != one.text
    result = executed(dataclasses.replace(one, text=short), world)["result"]
    assert len(result.repeats) == 2


def is_a_profile(one: Block, world: World) -> None:
    parse_profile(json.loads(one.text))


def makes_stages(one: Block, world: World) -> None:
    parts = {name: nn.Identity() for name in ("embed", "first_half", "second_half")}
    made = executed(one, world, load_network=lambda: SimpleNamespace(**parts))["build"]()
    assert len(made.parts) == 3


#: Page, how the block begins as a regular expression, and what is done with it.
BLOCK_RULES: tuple[tuple[str, str, BlockRule], ...] = (
    ("docs/measure.md", "from loadtest.generator", measures),
    ("docs/client.md", "import numpy", executed),
    ("docs/client.md", "from starling_client", executed),
    ("docs/protocol.md", "import numpy", executed),
    ("docs/tasks.md", "import openai", executed),
    ("docs/stages.md", r"from app.models import Staged", makes_stages),
    ("docs/simulation.md", r'\{"model"', is_a_profile),
)
