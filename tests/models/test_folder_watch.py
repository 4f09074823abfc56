"""Invariant: what was written and then left alone is loaded, once; what is still being written is not."""

from __future__ import annotations

import shutil

import pytest

from app.errors import BadRequest
from app.models.folder_watch import FolderWatch
from app.models.repository import Repository

from .folders import CODE, write_model


class Loads(list):
    """The registry's `load`, which refuses the model `bad` and does not expect `odd`, and its `unload`."""

    async def load(self, name):
        self.append(name)
        if name == "bad":
            raise BadRequest("it cannot be loaded")
        if name == "odd":
            raise KeyError(name)

    async def unload(self, name):
        self.append(f"not {name}")


@pytest.fixture
def loads():
    return Loads()


@pytest.fixture
def watch(tmp_path, loads):
    write_model(tmp_path / "a")
    write_model(tmp_path / "b" / "1")
    return FolderWatch(Repository(tmp_path), loads.load, loads.unload)


def edit(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + text if path.exists() else text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/model.toml", "a"),
        ("a/weights/deep.bin", "a"),
        ("b/1/model.py", "b"),
        ("b/2/model.toml", "b"),
        ("new/model.toml", "new"),
        ("bad/model.toml", "bad"),
        ("a/.model.py.swp", None),
        ("a/__pycache__/model.pyc", None),
        ("none/model.py", None),
        ("not a name/model.toml", None),
    ],
)
async def test_what_has_changed_is_loaded_once(tmp_path, watch, loads, path, name):
    await watch.look()
    edit(tmp_path / path, CODE)
    await watch.look()
    assert loads == [], "it may be half written"
    for _ in range(3):
        await watch.look()
    assert loads == ([] if name is None else [name])


@pytest.mark.parametrize("removed", ["a", "a/model.toml"])
async def test_what_is_removed_is_unloaded_once(tmp_path, watch, loads, removed):
    path = tmp_path / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    await watch.look()
    assert loads == [], "it may be about to be replaced"
    for _ in range(3):
        await watch.look()
    assert loads == ["not a"]
    write_model(tmp_path / "a")
    for _ in range(3):
        await watch.look()
    assert loads == ["not a", "a"]


async def test_nothing_is_unloaded_where_the_repository_cannot_be_read(tmp_path, watch, loads):
    shutil.rmtree(tmp_path)
    for _ in range(3):
        await watch.look()
    assert loads == []


async def test_an_unexpected_error_is_logged_at_once_and_the_next_look_goes_on(tmp_path, watch, loads, caplog):
    edit(tmp_path / "odd" / "model.toml", CODE)
    edit(tmp_path / "other" / "model.toml", CODE)
    await watch.look()
    await watch.look()
    assert [record.message for record in caplog.records if record.exc_info] == [
        "the models' folders could not be watched"
    ]
    await watch.look()
    assert loads == ["odd", "other"]
