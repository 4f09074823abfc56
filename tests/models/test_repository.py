"""Repositories: which folders are models, and which of them have changed."""

from __future__ import annotations

import logging
import shutil

import pytest

from app.errors import BadRequest, ConfigError
from app.models.folder_watch import FolderWatch
from app.models.repository import Repository

from .folders import CODE, write_model

# Invariant: what `scan` finds is what `sources` finds, and nothing else than folders with a model.toml.


def found(repository):
    scan = repository.scan()
    for name, sources in scan.items():
        assert repository.sources(name) == sources
    return {name: [source.version for source in sources] for name, sources in scan.items()}


def test_flat_and_numbered_folders(tmp_path):
    write_model(tmp_path / "flat")
    for version in ("10", "2"):
        write_model(tmp_path / "numbered" / version)
    assert found(Repository(tmp_path)) == {"flat": [1], "numbered": [2, 10]}
    assert list(Repository(str(tmp_path)).scan()) == ["flat", "numbered"]


def test_what_is_not_a_model_is_ignored_with_a_line(tmp_path, caplog):
    write_model(tmp_path / "good")
    write_model(tmp_path / "bad name")
    write_model(tmp_path / "good2" / "1")
    (tmp_path / "good2" / "2").mkdir()
    (tmp_path / "good2" / "03").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    with caplog.at_level(logging.WARNING, "starling.models"):
        assert found(Repository(tmp_path)) == {"good": [1], "good2": [1]}
    for text in ("bad name", "empty", "2: ignored: no model.toml"):
        assert text in caplog.text


def test_a_named_model_that_hides_one_is_told(tmp_path, caplog):
    folder, other = write_model(tmp_path / "repo" / "m"), write_model(tmp_path / "other")
    for models, hidden in ((folder.parent, folder), (folder, folder), ("demo", None)):
        caplog.clear()
        assert Repository(models, [f"m={other}"]).sources("m")[0].folder == other
        told = f"model m: {other} is served, as --model says, and hides {hidden}"
        assert caplog.messages == ([told] if hidden else [])


def test_sources_of_what_is_not_there(tmp_path):
    repository = Repository(tmp_path / ".")
    write_model(tmp_path.parent / "outside")
    for name in ("none", "..", "../outside", "", ".", "a" * 300, "a\0b"):
        assert repository.sources(name) == []


def test_a_folder_that_is_a_model_is_that_model(tmp_path):
    folder = write_model(tmp_path / "flat")
    write_model(folder / "7")  # model.toml beats numbered folders beside it
    assert found(Repository(folder)) == {"flat": [1]}
    for version in ("2", "10"):
        folder = write_model(tmp_path / "numbered" / version).parent
    (folder / "notes").mkdir()
    assert found(Repository(str(folder))) == {"numbered": [2, 10]}


def test_extra_models_beat_the_folder(tmp_path):
    write_model(tmp_path / "repo" / "a")
    other = write_model(tmp_path / "other" / "7").parent
    repository = Repository(tmp_path / "repo", [f"a={other}", f"b={other / '7'}"])
    assert found(repository) == {"a": [7], "b": [1]}
    assert found(Repository(None, [f"b={other}"])) == {"b": [7]}


@pytest.mark.parametrize("extra", ["a", "a=", "=x", "a b=x", "..=x", "a=missing", "a=" + 300 * "x", "a=x\0"])
def test_a_wrong_extra_model(extra):
    with pytest.raises(ConfigError, match="model"):
        Repository(None, [extra])


def test_an_extra_model_named_twice(tmp_path):
    folder = write_model(tmp_path / "m")
    with pytest.raises(ConfigError, match="'a' is named twice"):
        Repository(None, [f"a={folder}", f"a={folder}"])


# Invariant: what was written and then left alone is loaded, once; what is still being written is not.


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


async def test_an_unexpected_error_is_logged_and_the_folder_is_still_watched(tmp_path, watch, loads, caplog):
    edit(tmp_path / "odd" / "model.toml", CODE)
    edit(tmp_path / "other" / "model.toml", CODE)
    await watch.look()
    await watch.look()
    assert [record.message for record in caplog.records if record.exc_info] == [
        "the models' folders could not be watched"
    ]
    await watch.look()
    assert loads == ["odd", "other"]
