"""Tests marked `cuda` are collected where there is a GPU, and nowhere else: whatever -m is asked for."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    without = [item for item in items if item.get_closest_marker("cuda") is not None]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item.get_closest_marker("cuda") is None]
