"""Invariant: a profile and its pairs are used for what they were measured on and for nothing else.

Each is valid without the other, and whatever is wrong with a file never stops a server.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from app.contract import Stages
from app.engine.cpu.device import CpuDevice
from app.engine.profiling import cache as profiles
from app.engine.profiling.cache import ProfileCache, ProfileKey, architecture_of, default_folder, device_name, key_of
from app.scheduler.estimates.pairs import Pair, PairTime
from planner.profile_times import linear

from ..rig import X, Y, make_model, raising, tensor

KEY = ProfileKey("m", "abc", "cpu x", 1)
PROFILE = linear(1, 0.5, 4)


def pair(model: str = "n", architecture: str = "xyz", slower: float = 0.5) -> Pair:
    return Pair(model, architecture, (PairTime(1, 1, 100, 150, slower),), {"made": "then"})


class Kind(NamedTuple):
    """Profiles, or pairs, in a cache."""

    prefix: str

    def store(self, cache: ProfileCache) -> Path | None:
        return cache.store_pair(KEY, pair()) if self.prefix else cache.store(KEY, PROFILE)

    def load(self, cache: ProfileCache, key: ProfileKey = KEY) -> Any:
        return cache.load_pairs(key) if self.prefix else cache.load(key, 4)


KINDS = pytest.mark.parametrize("kind", [Kind(""), Kind("beside-")], ids=["profile", "pairs"])


@pytest.fixture
def cache(tmp_path: Path) -> ProfileCache:
    return ProfileCache(tmp_path / "starling" / "profiles")


@KINDS
def test_what_is_stored_is_found_and_nothing_of_another(kind: Kind, cache: ProfileCache):
    assert kind.store(cache) == cache.folder / f"{kind.prefix}{KEY.file_name}"
    assert kind.load(cache)
    for other in ({"model": "n"}, {"architecture": "x"}, {"device": "cpu y"}, {"threads": 2}, {"torch": "9.9"}):
        assert not kind.load(cache, replace(KEY, **other))


@KINDS
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"batch_ms": {"1": 0}}', '{"beside": 1}', '{"beside": [1]}'],
)  # fmt: skip
def test_a_file_that_holds_none_is_logged_once(kind: Kind, cache: ProfileCache, text: str, caplog):
    path = kind.store(cache)
    path.write_text(text)
    assert not kind.load(cache)
    assert not kind.load(cache)
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    kind.store(cache)
    assert kind.load(cache)


@KINDS
def test_no_file_is_no_fault_and_a_folder_that_cannot_be_written_is_logged_once(kind: Kind, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file" / "profiles")
    with caplog.at_level(logging.DEBUG):
        assert not kind.load(cache)
        assert caplog.records == []
        assert kind.store(cache) is None
        assert kind.store(cache) is None
    assert len(caplog.records) == 1
    assert "--profile-dir" in caplog.text


@KINDS
def test_processes_of_one_number_store_at_once(kind: Kind, cache: ProfileCache, monkeypatch: pytest.MonkeyPatch):
    """In containers that share the folder each server is process 1."""
    replaced = Path.replace

    def meanwhile(unfinished: Path, path: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replaced)
        assert kind.store(ProfileCache(cache.folder))
        return replaced(unfinished, path)

    monkeypatch.setattr(Path, "replace", meanwhile)
    assert kind.store(cache)
    assert len(list(cache.folder.iterdir())) == 1


def test_a_larger_profile_is_cut_a_smaller_one_not_used_and_a_new_one_replaces_it(cache: ProfileCache):
    cache.store(KEY, PROFILE)
    cut = cache.load(KEY, 2)
    assert (cut.batch_ns, cut.model, cut.device, cut.threads) == (linear(1, 0.5, 2).batch_ns, "m", "cpu x", 1)
    assert cache.load(KEY, 5) is None
    cache.store(KEY, replace(PROFILE, extra={"made": "then"}))
    (path,) = cache.folder.iterdir()
    assert json.loads(path.read_text())["made"] == "then"
    assert cache.load(KEY, 4).extra == {"made": "then"}  # type: ignore[union-attr]


def test_one_file_holds_all_pairs_of_a_model_whatever_becomes_of_the_profile(cache: ProfileCache):
    for one in (pair(), pair("o"), pair("n", "other"), pair(slower=0.1)):
        cache.store_pair(KEY, one)
    assert cache.load(KEY, 4) is None
    cache.store(KEY, PROFILE)
    assert cache.load_pairs(KEY) == (pair("o"), pair("n", "other"), pair(slower=0.1))
    assert len(list(cache.folder.iterdir())) == 2


def test_default_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/starling/profiles")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_folder() == Path("/home/x/.cache/starling/profiles")
    monkeypatch.setattr(profiles.os.path, "expanduser", lambda path: path)  # a user without a home
    assert default_folder() == Path("/.cache/starling/profiles")


def test_architecture_is_layers_weights_and_tensors():
    same = [make_model(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))) for _ in range(2)]
    others = [
        make_model(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))),
        make_model(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))),
        make_model(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).half()),
        make_model(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), [X], [tensor("y", "FP32", 3)]),
        make_model(lambda x: x, [X], [Y]),
        make_model(),
    ]
    assert architecture_of(same[0]) == architecture_of(same[1])
    assert len({architecture_of(model) for model in (same[0], *others)}) == 1 + len(others)


def test_what_a_layer_keeps_beside_weights_has_no_shape():
    class Packed(nn.Linear):
        def get_extra_state(self) -> Any:  # as a quantized layer
            return torch.qint8

    assert architecture_of(make_model(Packed(2, 3))) != architecture_of(make_model(nn.Linear(2, 3)))


@pytest.mark.parametrize("method", ["__repr__", "extra_repr", "state_dict"])
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_module_that_cannot_be_shown_has_an_architecture(method: str, error: type[BaseException]):
    hidden = type("Hidden", (nn.Linear,), {method: raising(error())})
    assert architecture_of(make_model(hidden(2, 3))) == architecture_of(make_model(hidden(2, 3)))
    staged = replace(make_model(hidden(2, 3)), stages=Stages((hidden(2, 3), nn.Linear(3, 3))))
    assert architecture_of(staged) != architecture_of(make_model(hidden(2, 3)))


def test_a_device_is_its_hardware(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    one, four = CpuDevice((8,), 1, 4), CpuDevice((8,) * 4, 1, 4)
    assert device_name(one) == device_name(four)
    assert key_of(make_model(), one) == key_of(make_model(), four)
    assert key_of(make_model(), one) != key_of(make_model(), CpuDevice((8,), 2, 4))
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU 9 \nmodel name\t: another\n")
    monkeypatch.setattr(profiles, "_CPUINFO", info)
    assert device_name(one).startswith("cpu Some CPU 9, ")
    monkeypatch.setattr(profiles, "_CPUINFO", tmp_path / "none")
    assert device_name(one).startswith("cpu ")
