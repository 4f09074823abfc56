"""Every command of the README and of docs/, and every answer that they show: documented_rules.py says how each is run.

Recipes are run by test_recipes.py. Requests go to one server; commands run in this process where they can.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from .conftest import Keeper
from .documented import Block, Command, blocks, commands, pages, quoted
from .documented_blocks import ELSEWHERE, BlockRule, block_rule
from .documented_rules import NOT_RUN, answers, check_flags, is_looked_at, reason, records, replays, rule_of
from .documented_world import World
from .server import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BLOCKS = [block for page in pages() for block in blocks(page)]
COMMANDS = [command for block in BLOCKS if block.is_shell for command in commands(block)]
OTHERS = [block for block in BLOCKS if not block.is_shell]
#: A server of one's own ends the shared one: these come last.
OWN_SERVER = (records, replays)


def ruled(*rules: Callable[[Command, World], None]) -> list[Command]:
    return [command for command in COMMANDS if rule_of(command) in rules]


RUN = [command for command in COMMANDS if rule_of(command) not in (None, answers, is_looked_at, *OWN_SERVER)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keeper: Keeper) -> World:
    return World(tmp_path_factory.mktemp("documentation"), keeper)


@pytest.fixture(autouse=True)
def _there(world: World, restored_logging: None) -> Iterator[None]:
    """In the world's folder, with torch's threads as they were afterwards."""
    threads, place = torch.get_num_threads(), Path.cwd()
    os.chdir(world.folder)
    yield
    os.chdir(place)
    torch.set_num_threads(threads)


def run(command: Command, world: World) -> None:
    rule = rule_of(command)
    assert rule is not None
    rule(command, world)


def test_every_command_and_block_has_a_rule() -> None:
    unknown = [f"{one}: no rule for: {one.text.splitlines()[0]}" for one in COMMANDS if rule_of(one) is None]
    unknown += [f"{one}: no rule for: {one.text.splitlines()[0]}" for one in OTHERS if block_rule(one) is None]
    assert unknown == []


@pytest.mark.parametrize("command", ruled(answers), ids=str)
def test_request(command: Command, world: World) -> None:
    run(command, world)


def test_routes_of_the_table_answer(world: World) -> None:
    """Each that is asked with GET, of the model `echo`: with its version, and without. A stream would not end."""
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    told = [path for row in re.findall(r"^\| GET (.*?) \|", page, re.MULTILINE) for path in re.findall("`(.*?)`", row)]
    assert len(told) > 10
    for path in told:
        if path == "/ui/events":
            continue
        path = path.replace("{m}", "echo").replace("{v}", "1")
        for one in {re.sub(r"\[.*\]", "", path), re.sub(r"[\[\]]", "", path)}:
            assert world.server.get(one).status == 200, one


@pytest.mark.parametrize("block", [one for one in OTHERS if isinstance(block_rule(one), BlockRule)], ids=str)
def test_block(block: Block, world: World) -> None:
    rule = block_rule(block)
    assert isinstance(rule, BlockRule)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        rule.run(block, world)
    if block.answer:
        assert printed.getvalue() == block.answer.text


@pytest.mark.parametrize("command", RUN, ids=str)
def test_command(command: Command, world: World) -> None:
    run(command, world)


@pytest.mark.parametrize("command", ruled(*OWN_SERVER), ids=str)
def test_with_a_server_of_its_own(command: Command, world: World) -> None:
    run(command, world)


@pytest.mark.parametrize("command", ruled(is_looked_at), ids=str)
def test_command_that_is_not_run(command: Command, world: World) -> None:
    run(command, world)


def test_what_is_not_run_is_on_a_page() -> None:
    """No reason, and no reference to another test, outlives what it is for."""
    assert {reason(command) for command in ruled(is_looked_at)} == set(NOT_RUN)
    assert {block_rule(block) for block in OTHERS} >= set(ELSEWHERE)
    for one in ELSEWHERE:
        assert f"def {one.test}(" in (ROOT / "tests" / one.file).read_text(encoding="utf-8"), one


@pytest.mark.parametrize("words", ["models mine", "check mine/softmax"])
def test_commands_on_a_folder_of_models(words: str, world: World) -> None:
    done = world.starling(*words.split())
    assert done.exit_code == 0, done.output
    assert "softmax" in done.output


@pytest.mark.parametrize("page", pages())
def test_commands_in_the_prose(page: str) -> None:
    """Programs that it names are there, and so are their flags."""
    for text in quoted(page):
        if found := re.match(r"(?:\.venv/bin/)?starling ([a-z]+ .*)", text):
            check_flags(["starling", *found[1].split()])
        if found := re.match(r"python -m ([\w.]+)", text):
            path = ROOT / found[1].replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {text}"
