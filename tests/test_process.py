"""Freed memory is kept where the C library can be told so, and what was given in the environment stays."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from app import process


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


def library(monkeypatch: pytest.MonkeyPatch, answer: int = 1) -> list[tuple[int, int]]:
    """A C library that notes what it is told."""
    told: list[tuple[int, int]] = []

    def mallopt(what: int, value: int) -> int:
        told.append((what, value))
        return answer

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    return told


@pytest.mark.parametrize(
    "name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"]
)
def test_what_was_given_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    told = library(monkeypatch)
    monkeypatch.setenv(name, "")
    assert not process.keep_freed_memory()
    assert told == []


@pytest.mark.parametrize(
    ("limits", "set_to", "told"),
    [((1024, 1 << 20), 4352, None), ((1024, 2048), 2048, 2048), ((8192, 8192), None, None), ((-1, -1), None, None)],
)
def test_open_files(limits: tuple[int, int], set_to: int | None, told: int | None, monkeypatch) -> None:
    resource = pytest.importorskip("resource")
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: found.append(both))
    assert process.allow_open_files(4096) == told
    assert found == ([] if set_to is None else [(set_to, limits[1])])
