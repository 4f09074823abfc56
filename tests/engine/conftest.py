"""The kinds of devices; quick control tables. Tests marked `cuda` are collected only where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from runtimes import HostRuntime

from app.scheduler.optimal import tables

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


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """torch's number of threads is the process's, and workers set it."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _few_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control tables for all loads take a second for each model under `adaptive`."""
    assert tables.solve.__kwdefaults__ is not None
    monkeypatch.setitem(tables.solve.__kwdefaults__, "loads", (0.1, 0.5, 0.9))
    here = lambda *args, **options: tables.solve(*args, **options)  # noqa: E731  # as it is then: tests replace it
    monkeypatch.setattr("app.engine.profiling.tables.solve_aside", here)
