"""Invariant: a profile is used for what it was measured on and for nothing else, and the cache never stops a server."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from torch import nn

from app.engine.cpu.device import CpuDevice
from app.engine.profiling import cache as profiles
from app.engine.profiling.cache import Key, ProfileCache, architecture_of, default_folder, device_name, key_of
from app.scheduler.estimates.profile import ModelProfile, linear

from ..rig import X, Y, make_model, tensor

KEY = Key("m", "abc", "cpu x", 1)


@pytest.fixture
def cache(tmp_path: Path) -> ProfileCache:
    return ProfileCache(tmp_path / "starling" / "profiles")


def test_what_is_stored_is_found(cache: ProfileCache):
    path = cache.store(KEY, linear(1, 0.5, 4))
    assert path is not None
    assert [path] == list(cache.folder.iterdir())
    found = cache.load(KEY, 4)
    assert found is not None
    assert (found.batch_ns, found.model, found.device, found.threads) == (linear(1, 0.5, 4).batch_ns, "m", "cpu x", 1)


@pytest.mark.parametrize(
    "other",
    [Key("n", "abc", "cpu x", 1), Key("m", "xyz", "cpu x", 1), Key("m", "abc", "cpu y", 1), Key("m", "abc", "cpu x", 2),
     Key("m", "abc", "cpu x", 1, "9.9")],
)  # fmt: skip
def test_what_was_measured_elsewhere_is_not(cache: ProfileCache, other: Key):
    cache.store(KEY, linear(1, 0.5, 4))
    assert cache.load(other, 4) is None


def test_a_larger_profile_is_cut_and_a_smaller_one_not_used(cache: ProfileCache):
    cache.store(KEY, linear(1, 0.5, 4))
    cut = cache.load(KEY, 2)
    assert cut is not None
    assert cut.batch_ns == linear(1, 0.5, 2).batch_ns
    assert cache.load(KEY, 5) is None


def test_storing_again_replaces(cache: ProfileCache):
    cache.store(KEY, linear(1, 0.5, 4))
    cache.store(KEY, linear(2, 0.5, 4))
    assert len(list(cache.folder.iterdir())) == 1
    assert cache.load(KEY, 4).batch_ns == linear(2, 0.5, 4).batch_ns  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"batch_ms": {"1": 0}}', '{"batch_ms": {"1": 1}, "model": "n"}'])
def test_a_file_that_is_no_profile_is_said_once(cache: ProfileCache, text: str, caplog: pytest.LogCaptureFixture):
    path = cache.store(KEY, linear(1, 0.5, 4))
    assert path is not None
    path.write_text(text)
    assert cache.load(KEY, 1) is None
    assert cache.load(KEY, 1) is None
    assert len(caplog.records) == 1
    assert str(path) in caplog.text


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file" / "profiles")
    assert cache.store(KEY, linear(1, 0.5, 4)) is None
    assert cache.store(KEY, linear(1, 0.5, 4)) is None
    assert len(caplog.records) == 1
    assert "--profile-dir" in caplog.text


def test_nothing_there_is_no_fault(cache: ProfileCache, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        assert cache.load(KEY, 4) is None
    assert caplog.records == []
    assert not cache.folder.exists()


def test_unknown_keys_are_kept(cache: ProfileCache):
    cache.store(KEY, ModelProfile((10,), extra={"made": "then"}))
    assert cache.load(KEY, 1).extra == {"made": "then"}  # type: ignore[union-attr]
    (path,) = cache.folder.iterdir()
    assert json.loads(path.read_text())["made"] == "then"


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
    digests = {architecture_of(model) for model in (same[0], *others)}
    assert len(digests) == 1 + len(others)


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


def suggesting(made: str, threads: int) -> ModelProfile:
    return ModelProfile((10,), extra={"made": made, "suggested": {"threads": threads, "workers": [8]}})


def test_the_newest_suggestion_on_this_hardware(cache: ProfileCache):
    assert cache.suggestion("m", "cpu x") is None
    cache.store(Key("m", "abc", "cpu x", 2), suggesting("2026-01-02", 2))
    cache.store(Key("m", "abc", "cpu x", 4), suggesting("2026-01-03", 4))
    cache.store(Key("m", "abc", "cpu x", 1), suggesting("2026-01-01", 1))
    cache.store(Key("m", "abc", "cpu y", 1), suggesting("2026-01-09", 9))
    cache.store(Key("m-2", "abc", "cpu x", 1), suggesting("2026-01-09", 8))
    cache.store(Key("m", "xyz", "cpu x", 1), ModelProfile((10,), extra={"made": "2026-02-01"}))
    (cache.folder / "m-broken.json").write_text("{")
    (cache.folder / "m-deep.json").write_text("[" * 100_000)
    assert cache.suggestion("m", "cpu x") == {"threads": 4, "workers": [8]}
    assert cache.suggestion("m-2", "cpu x") == {"threads": 8, "workers": [8]}
    assert cache.suggestion("n", "cpu x") is None
