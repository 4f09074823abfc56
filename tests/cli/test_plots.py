"""The plot shows the percentiles of the runs, at their places, and says what its axes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.made import repeat, result
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from app.cli import plots
from app.cli.output import load_plots
from app.errors import ConfigError


@pytest.fixture
def figure(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are closed, which is after they were saved."""
    closed: list[Figure] = []
    monkeypatch.setattr(plt, "close", closed.append)
    return closed


def test_lines(tmp_path: Path, figure: list[Figure]) -> None:
    path = tmp_path / "out.png"
    runs = [repeat(list(np.arange(1.0, 1001.0))), repeat([5.0] * 999 + [-1.0])]
    plots.percentiles(result(*runs, deadline_ms=400.0), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = figure[0].axes
    first, second, merged, deadline = axes.get_lines()
    assert (first.get_ydata()[0], first.get_ydata()[-1]) == (1.0, 1000.0)
    assert first.get_xdata()[-1] == pytest.approx(1000)  # of a thousand, the largest stands at 99.9 %
    half = int(np.searchsorted(first.get_xdata(), 2))
    assert first.get_ydata()[half] == pytest.approx(500, rel=0.02)
    assert set(second.get_ydata()) == {5.0}
    assert merged.get_linewidth() > first.get_linewidth()
    assert set(deadline.get_ydata()) == {400.0}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "50", "90", "99", "99.9"]


def test_one_run_is_one_line(tmp_path: Path, figure: list[Figure]) -> None:
    plots.percentiles(result(repeat([1.0]), rate=None, concurrency=2), tmp_path / "out.svg")
    (axes,) = figure[0].axes
    assert len(axes.get_lines()) == 1
    assert "closed loop" in axes.get_title()


def test_a_path_that_will_not_do(tmp_path: Path) -> None:
    """It is said before anything is measured."""
    assert load_plots(tmp_path / "a.PNG") is plots
    with pytest.raises(ConfigError, match=r"expected a file's name that ends in .*png"):
        load_plots(tmp_path / "a.foo")
    with pytest.raises(ConfigError, match="no such folder"):
        load_plots(tmp_path / "no" / "a.png")
