"""The benchmarks are not installed with the package: they are imported from the checkout, and helpers from tests/."""

import sys
from pathlib import Path

import pytest

from app.scheduler.optimal import tables

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from experiments.common import processes


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests replace is replaced in this process alone."""
    monkeypatch.setattr(processes, "PROCESSES", 1)


@pytest.fixture(autouse=True)
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of several workers are solved for two loads: half a minute less for each kind of batch times."""
    monkeypatch.setattr(tables, "LOADS_OF_SEVERAL", (0.3, 0.8))
