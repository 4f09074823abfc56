"""Every command of the README and of docs/, and every answer that they show: documented_rules.py says how each is run.

Recipes are run by test_recipes.py. Requests go to one server; commands run in this process where they can.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .conftest import Keeper
from .documented import Block, Command, blocks, commands, pages, quoted
from .documented_rules import BLOCK_RULES, RULES, block_rule, check_flags, rule_of
from .documented_world import World
from .server import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BLOCKS = [block for page in pages() for block in blocks(page)]
COMMANDS = [command for block in BLOCKS if block.is_shell for command in commands(block)]
OTHERS = [block for block in BLOCKS if not block.is_shell and block_rule(block)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keeper: Keeper) -> World:
    made = World(tmp_path_factory.mktemp("documentation"), keeper)
    gc.freeze()  # each measurement has all objects collected first: those of transformers would take it 0.2 s
    return made


@pytest.fixture(autouse=True)
def _there(world: World, restored_logging: None) -> Iterator[None]:
    """In the world's folder, with torch's threads as they were afterwards."""
    threads, place = torch.get_num_threads(), Path.cwd()
    os.chdir(world.folder)
    yield
    os.chdir(place)
    torch.set_num_threads(threads)


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


def test_every_model_whose_files_the_pages_give_serves(world: World) -> None:
    assert world.server.get("/v2/health/ready").status == 200


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_block(block: Block, world: World) -> None:
    run = block_rule(block)
    assert run is not None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(block, world)
    if block.answer:
        assert printed.getvalue() == block.answer


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command(command: Command, world: World) -> None:
    rule_of(command)(command, world)


def test_every_rule_is_for_something() -> None:
    assert [begins for begins, _ in RULES if not any(re.match(begins, one.text) for one in COMMANDS)] == []
    for page, begins, _ in BLOCK_RULES:
        assert any(page == one.page and re.match(begins, one.text) for one in OTHERS), (
            f"{page}: nothing begins {begins}"
        )


@pytest.mark.parametrize("page", pages())
def test_commands_in_the_prose(page: str) -> None:
    """Its commands are there, and so are their flags."""
    for text in quoted(page):
        if found := re.match(r"(?:\.venv/bin/)?starling ([a-z]+ .*)", text):
            check_flags(["starling", *found[1].split()])
