"""The errors that docs/trouble.md shows: each is made again, and must have the words of the page."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from app.errors import ConfigError
from app.models.repository import Repository
from app.server import bind

from .documented import Block, alike
from .documented_world import World

PAGE = "docs/trouble.md"
TABLE = """
source = "{source}"
inputs = [{{ name = "x", datatype = "FP32", shape = [3] }}]
outputs = [{{ name = "y", datatype = "FP32", shape = [3] }}]
"""
CODE = TABLE.format(source="model.py:build")


def tells(one: Block, world: World) -> None:
    """What is printed or answered has the text of the block somewhere in it."""
    printed = ERRORS[one.heading](world)
    assert alike(f"...{one.text}...", printed), f"{one}: it says\n{printed}"


def no_folder(world: World) -> str:
    with pytest.raises(ConfigError) as raised:
        Repository("nothere")
    return f"starling: {raised.value}"


def taken(world: World) -> str:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            bind("127.0.0.1", port)
    return f"starling: {raised.value}".replace(str(port), "8000")


def missing(world: World) -> str:
    with patch.dict(sys.modules, {"timm": None}):
        return checked(world, TABLE.format(source="timm:resnet18"))


def checked(world: World, toml: str = CODE, code: str = "", save: Callable[[Path], None] | None = None) -> str:
    """What `starling check` says of the one model `flower` in a folder of its own, which is called `mine` in it."""
    place = Path(tempfile.mkdtemp(dir=world.folder)) / "mine"
    (place / "flower").mkdir(parents=True)
    (place / "flower" / "model.toml").write_text(toml)
    if code:
        (place / "flower" / "model.py").write_text(f"from torch import nn\nbuild = {code}\n")
    if save is not None:
        save(place / "flower" / ("model.pt2" if "pt2" in toml else "model.pt"))
    return world.starling("check", str(place)).output.replace(str(place), "mine")


def export(to: Path) -> None:
    torch.export.save(torch.export.export(nn.Softmax(1), (torch.ones(2, 3),)), to)


ERRORS: dict[str, Callable[[World], str]] = {
    "The folder is not there": no_folder,
    "The port is taken": taken,
    "A library is missing": missing,
    "A key of model.toml is wrong": partial(checked, toml=CODE.replace("inputs", "input"), code="None"),
    "The file is a pickle": partial(
        checked, toml=TABLE.format(source="model.pt"), save=lambda to: torch.save(nn.Softmax(1), to)
    ),
    "It takes one batch size alone": partial(checked, toml=TABLE.format(source="model.pt2"), save=export),
    "A row's answer depends on its batch": partial(checked, code="lambda: nn.Softmax(0)"),
    "It raises on every row that it is tried with": partial(checked, code="lambda: nn.Linear(4, 3)"),
    "A request has another shape": lambda world: world.server.post("/predict/softmax", [1, 2]).body.decode(),
    "The body is too large": lambda world: world.server.post("/predict/softmax", [[1.25] * 3] * 250_000).body.decode(),
}
