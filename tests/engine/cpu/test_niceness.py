"""A worker's thread gives way while it runs best-effort units, and only where it can come back."""

from __future__ import annotations

import os
import threading

import pytest

from app.engine.cpu import niceness
from app.engine.cpu.niceness import Niceness, may_be_nice


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    may_be_nice.cache_clear()


def on_a_thread(act) -> list[int]:
    """What a thread of its own was told of its priority meanwhile."""
    seen: list[int] = []
    thread = threading.Thread(target=act, args=(seen,))
    thread.start()
    thread.join()
    return seen


def test_a_thread_gives_way_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the privilege that this takes, by what it asks of the system."""
    asked: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda which, who, value: asked.append(value))
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def act(seen: list[int]) -> None:
        nice = Niceness()
        for best_effort in (False, True, True, False):
            nice.set(best_effort)
            seen.append(len(asked))

    assert on_a_thread(act) == [0, 1, 1, 2]
    assert asked == [min(19, own + 10), own]


@pytest.mark.parametrize("allowed", [True, False])
def test_it_is_tried_before_it_is_relied_on(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def setpriority(which: int, who: int, value: int) -> None:
        if value == own and not allowed:
            raise PermissionError

    monkeypatch.setattr(os, "setpriority", setpriority)
    assert may_be_nice() is allowed


def test_another_system_sets_that_of_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(niceness.sys, "platform", "darwin")
    monkeypatch.setattr(os, "setpriority", lambda *args: asked.append(args))
    assert not may_be_nice()
    assert asked == []
