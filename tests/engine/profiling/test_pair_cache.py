"""Invariant: pairs are found where the profile is, stay when it is measured again, and never stop a server."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from app.engine.profiling.cache import Key, ProfileCache
from app.scheduler.estimates.pairs import Pair, PairTime
from app.scheduler.estimates.profile import linear

KEY = Key("m", "abc", "cpu x", 1)


def pair(model: str = "n", architecture: str = "xyz", slower: float = 0.5) -> Pair:
    return Pair(model, architecture, (PairTime(1, 1, 100, 150, slower),), {"made": "then"})


def path(cache: ProfileCache) -> Path:
    return cache.folder / f"beside-{KEY.file_name}"


@pytest.fixture
def cache(tmp_path: Path) -> ProfileCache:
    return ProfileCache(tmp_path / "starling" / "profiles")


def test_what_is_stored_is_found(cache: ProfileCache):
    assert cache.store_pair(KEY, pair()) == path(cache)
    assert cache.load_pairs(KEY) == (pair(),)


def test_one_file_holds_all_pairs_of_a_model_and_a_new_one_takes_the_place_of_the_old(cache: ProfileCache):
    for one in (pair(), pair("o"), pair("n", "other"), pair(slower=0.1)):
        cache.store_pair(KEY, one)
    assert cache.load_pairs(KEY) == (pair("o"), pair("n", "other"), pair(slower=0.1))
    assert len(list(cache.folder.iterdir())) == 1


@pytest.mark.parametrize(
    "other",
    [Key("n", "abc", "cpu x", 1), Key("m", "xyz", "cpu x", 1), Key("m", "abc", "cpu y", 1), Key("m", "abc", "cpu x", 2),
     Key("m", "abc", "cpu x", 1, "9.9")],
)  # fmt: skip
def test_what_was_measured_elsewhere_is_not(cache: ProfileCache, other: Key):
    cache.store_pair(KEY, pair())
    assert cache.load_pairs(other) == ()


def test_profiles_and_pairs_do_not_meet(cache: ProfileCache):
    """Either is valid without the other, and measuring one again leaves the other as it is."""
    cache.store_pair(KEY, pair())
    assert cache.load(KEY, 4) is None
    cache.store(KEY, linear(1, 0.5, 4))
    assert cache.load_pairs(KEY) == (pair(),)
    cache.store_pair(KEY, pair("o"))
    found = cache.load(KEY, 4)
    assert found is not None
    assert found.batch_ns == linear(1, 0.5, 4).batch_ns


def test_nothing_there_is_no_fault(cache: ProfileCache, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        assert cache.load_pairs(KEY) == ()
    assert caplog.records == []
    assert not cache.folder.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"beside": 1}', '{"model": "m", "device": "cpu x", "threads": 1, "beside": [1]}',
     '{"model": "m", "device": "cpu x", "threads": 2, "beside": []}'],
)  # fmt: skip
def test_a_file_that_holds_no_pairs_is_said_once(cache: ProfileCache, text: str, caplog: pytest.LogCaptureFixture):
    cache.folder.mkdir(parents=True)
    path(cache).write_text(text)
    assert cache.load_pairs(KEY) == cache.load_pairs(KEY) == ()
    assert len(caplog.records) == 1
    assert str(path(cache)) in caplog.text
    cache.store_pair(KEY, pair())
    assert json.loads(path(cache).read_text())["beside"] == [pair().to_dict()]


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file" / "profiles")
    assert cache.store_pair(KEY, pair()) is None
    assert cache.store_pair(KEY, pair()) is None
    assert len(caplog.records) == 1
    assert "--profile-dir" in caplog.text
