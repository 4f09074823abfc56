"""Arrivals and lengths: the same seed gives the same, at the rate and with the spread that were asked for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tiers import full

from planner.arrivals import Arrivals, make
from planner.drawn_lengths import Lengths, mean

# Arrivals: the same seed gives the same instants, in order, at the rate and with the spread that were asked for.


SPECS = ["poisson", "uniform", "gamma:0.5", "gamma:3", "steps:0.5x10,2x5,0x5", "diurnal:60:0.8", "bursty:0.5:1.5"]
S = 1_000_000_000


def instants(arrivals: Arrivals, chunks: int = 4) -> np.ndarray:
    return np.concatenate(list(islice(arrivals.chunks(), chunks)))


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_instants(spec: str) -> None:
    first, again, other = (instants(make(spec, 200, seed), 2) for seed in (1, 1, 2))
    assert first.dtype == np.int64
    assert (first == again).all()
    assert spec == "uniform" or (first[:100] != other[:100]).any()


@pytest.mark.parametrize("spec", SPECS)
def test_in_order_and_at_the_rate(spec: str) -> None:
    arrivals = make(spec, 200, 3)
    times = instants(arrivals)
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()
    assert len(times) / times[-1] * S == pytest.approx(arrivals.rate, rel=0.05)
    if not spec.startswith("steps"):
        assert arrivals.rate == 200


def test_uniform_does_not_drift() -> None:
    times = instants(make("uniform", 3, 0))
    assert times[-1] == round(len(times) * S / 3)


@full
def test_steps_keep_their_rates() -> None:
    times = instants(make("steps:0.5x10,2x5,0x5", 400, 0)) / S
    counts, _ = np.histogram(times % 20, bins=[0, 10, 15, 20])
    assert counts[2] == 0
    assert counts[1] / counts[0] == pytest.approx(2, rel=0.03)


@full
def test_bursty_is_silent_while_off() -> None:
    """On half a second of every two, at four times the rate; a gap above 0.1 s is an off period, nearly always."""
    gaps = np.diff(instants(make("bursty:0.5:1.5", 200, 0), 8)) / S
    pauses = gaps[gaps > 0.1]
    assert np.median(gaps) == pytest.approx(np.log(2) / 800, rel=0.05)
    assert pauses.sum() / gaps.sum() == pytest.approx(0.75, abs=0.04)
    assert (pauses - 0.1).mean() == pytest.approx(1.5, rel=0.15)  # exponential: what is left after 0.1 s is as long


def test_trace(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("time,user\n# a comment\n10.0,a\n10.5,b\n\n10.5,c\n12,d\n")
    own = make(f"trace:{path}", None, 0)
    assert own.rate == pytest.approx(1.5)
    assert instants(own).tolist() == [0, S // 2, S // 2, 2 * S]
    stretched = make(f"trace:{path}", 3, 0)
    assert stretched.rate == 3
    assert instants(stretched).tolist() == [0, S // 4, S // 4, S]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least two times"),
        ("1\n", "at least two times"),
        ("1\n1\n", "at least two times"),
        ("2\n1\n", ":2: expected times in order"),
        ("1\nx\n", ":2: expected a time in seconds, got 'x'"),
        ("1\nnan\n", ":2: expected a time in seconds"),
    ],
)
def test_bad_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "times"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        make(f"trace:{path}", None, 0)


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        *((spec, 1) for spec in ("", "poison", "poisson:1", "gamma", "gamma:x", "gamma:-1", "gamma:1:2", "steps:1",
                                 "steps:0x5", "steps:1x0", "diurnal:0:0.5", "diurnal:10:2", "diurnal:10", "bursty:0:1",
                                 "bursty:1")),
        *(("poisson", rate) for rate in (None, 0, -1, float("nan"), float("inf"))),
    ],
)  # fmt: skip
def test_what_is_no_spec_or_no_rate(spec: str, rate: float | None) -> None:
    with pytest.raises(ValueError, match="^rate: " if spec == "poisson" else "^arrivals: "):
        make(spec, rate, 0)


# Lengths come from a spec and a seed, the same however they are taken.


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
    ["", "column:1", "fixed", "fixed:0", "fixed:1.5", "uniform:5:1", "uniform:1", "lognormal:1:1:5:9", "normal:3:1",
     "fixed:x", "lognormal:20:4:16"],
)  # fmt: skip
def test_a_bad_spec_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match=r"^lengths: expected"):
        Lengths(spec, [0])
