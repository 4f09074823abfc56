"""Arrivals: the same seed gives the same instants, in order, at the rate and with the spread that were asked for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tiers import full

from app.sim.arrivals import Arrivals, make

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
    "spec",
    ["", "poison", "poisson:1", "gamma", "gamma:x", "gamma:-1", "gamma:1:2", "steps:1", "steps:0x5", "steps:1x0",
     "diurnal:0:0.5", "diurnal:10:2", "diurnal:10", "bursty:0:1", "bursty:1"],
)  # fmt: skip
def test_spec_that_is_not_understood(spec: str) -> None:
    with pytest.raises(ValueError, match="arrivals"):
        make(spec, 1, 0)


@pytest.mark.parametrize("rate", [None, 0, -1, float("nan"), float("inf")])
def test_rate_that_is_none(rate: float | None) -> None:
    with pytest.raises(ValueError, match="rate"):
        make("poisson", rate, 0)
