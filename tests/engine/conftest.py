"""The kinds of devices; quick starts. Tests marked `cuda` are collected only where there is a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from runtimes import HostRuntime

from app.models.checks import row_check
from app.scheduler.optimal import tables
from app.scheduler.optimal.tables import ControlTables

from .places import KINDS, Place


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    without = [item for item in items if item.get_closest_marker("cuda") is not None]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item.get_closest_marker("cuda") is None]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with HostRuntime() as runtime:
        yield Place(request.param, runtime)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What goes does so by itself: the collector may have been told to leave alone what the first models loaded."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """torch's number of threads is the process's, and workers set it."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _quick_starts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Control tables for all loads take a second for each model under `adaptive`, the row check 0.5 s for each model
    of several workers."""
    monkeypatch.setitem(tables.solve.__kwdefaults__, "loads", (0.1, 0.5, 0.9))
    if "two_workers_cannot_share" not in request.node.name:  # there two batches are given time to meet
        monkeypatch.setattr(row_check, "_AT_ONCE_S", 0.0)
    if "process_of_its_own" not in request.node.name:
        monkeypatch.setattr("app.engine.profiling.tables.Solver.solve", _solve_here)


async def _solve_here(_: object, *args: Any, **options: Any) -> ControlTables:
    return tables.solve(*args, **options)
