"""The whole suite runs all of a test; the core tier runs a few examples of it, and never none."""

from __future__ import annotations

import pytest
import tiers


def test_whole_suite_runs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "core", False)
    assert [tiers.few(times) for times in (1, 10, 400)] == [1, 10, 400]
    assert tiers.some("abcdef", 2) == list("abcdef")


def test_core_tier_runs_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "core", True)
    assert [tiers.few(times) for times in (5, 10, 400)] == [3, 3, 20]
    assert tiers.some("abcdef", 2) == ["a", "c", "e"]
    assert tiers.some("abc", 99) == ["a"]
