"""The settings of torch's allocators, beside those of whoever starts the server."""

from __future__ import annotations

import pytest
import torch

from app.engine.streams.cuda import set_allocators

CATCHES = "pinned_free_catch_all:True"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("", "pinned_max_cached_size_mb:64"),
        ("expandable_segments:True,", "expandable_segments:True,pinned_max_cached_size_mb:64"),
        ("pinned_max_cached_size_mb:8", "pinned_max_cached_size_mb:8"),
    ],
)
def test_settings_are_added_to_those_that_are_there(
    theirs: str, expected: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every torch knows what it is to do with pinned memory of a device that has failed."""
    now = [theirs]

    def take(settings: str) -> None:
        if "catch_all" in settings and not known:
            raise ValueError("Unrecognized key")
        now.append(settings)

    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: now[-1])
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", take)
    for _ in range(2):  # a runtime for each device
        set_allocators()
    assert now[-1] == (f"{expected},{CATCHES}" if known else expected)
