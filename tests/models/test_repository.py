"""Invariant: what `scan` finds is what `sources` finds, and nothing else than folders with a model.toml."""

from __future__ import annotations

import logging

import pytest

from app.errors import ConfigError
from app.models.repository import Repository

from .folders import write_model


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
    assert Repository(str(tmp_path)).names() == ["flat", "numbered"]


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
