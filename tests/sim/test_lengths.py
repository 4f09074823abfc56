"""Lengths come from a spec and a seed, the same however they are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.sim.lengths import Lengths, mean


@pytest.mark.parametrize("spec", ["fixed:20", "uniform:1:330", "lognormal:14:0.8:4:128"])
def test_the_stream_does_not_depend_on_how_it_is_taken(spec: str) -> None:
    whole = Lengths(spec, [3]).draw(20_000)
    parts = Lengths(spec, [3])
    assert np.array_equal(whole, np.concatenate([parts.draw(count) for count in (1, 0, 9_999, 10_000)]))
    low, high = (20, 20) if spec.startswith("fixed") else (1, 330) if spec.startswith("uniform") else (4, 128)
    assert low <= whole.min() <= whole.max() <= high


def test_lengths_have_the_mean_and_deviation() -> None:
    drawn = Lengths("lognormal:14:4:128", [0]).draw(100_000)
    assert drawn.mean() == pytest.approx(14, rel=0.01)
    assert drawn.std() == pytest.approx(4, rel=0.02)
    few = Lengths("lognormal:1:4:16", [0]).draw(1000)
    assert (few.min(), few.max() <= 16) == (1, True)


def test_means_and_medians() -> None:
    assert mean("20") == 20
    assert mean("fixed:20") == 20
    assert mean("uniform:1:330") == pytest.approx(165.5, rel=0.01)
    assert np.median(Lengths("lognormal:14:0.8:1:1000", [1]).draw(20_000)) == pytest.approx(14, abs=1)


def test_lengths_of_a_trace_are_taken_in_turn_and_from_the_beginning_again(tmp_path: Path) -> None:
    (path := tmp_path / "a:b.csv").write_text("0.5,300,7\n0.9,200,1\n1.5,10,30\n")
    lengths = Lengths(f"column:2:{path}", [0])
    assert [*lengths.draw(2), *lengths.draw(3)] == [300, 200, 10, 300, 200]
    assert (lengths.low, lengths.high, mean(f"column:3:{path}")) == (10, 300, pytest.approx(38 / 3, rel=0.001))


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("0", "1,2\n", "expected the number of a column"),
        ("3", "1,2\n", "t.csv: "),
        ("2", "1,b\n", "t.csv: "),
        ("2", "1,0\n", "expected whole numbers"),
    ],
)
def test_a_trace_without_lengths(tmp_path: Path, column: str, text: str, message: str) -> None:
    (path := tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=f"^lengths: .*{message}"):
        Lengths(f"column:{column}:{path}", [0])


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "column:1",
        "fixed",
        "fixed:0",
        "fixed:1.5",
        "uniform:5:1",
        "uniform:1",
        "lognormal:1:1:5:9",
        "normal:3:1",
        "fixed:x",
        "lognormal:20:4:16",
    ],
)  # fmt: skip
def test_a_bad_spec_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match=r"^lengths: expected"):
        Lengths(spec, [0])
