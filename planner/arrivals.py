"""Arrival times of requests, from seeded random processes or traces, as chunks of integer nanoseconds.

    poisson, uniform            independent; one every 1 / rate
    gamma:CV                    gaps with this coefficient of variation
    steps:FxS,FxS,...           poisson at F times the rate for S seconds each, repeated
    diurnal:PERIOD_S:AMPLITUDE  poisson at rate x (1 + AMPLITUDE sin(2 pi t / PERIOD_S))
    bursty:ON_S:OFF_S           poisson while on, nothing while off; exponential periods with these means
    trace:FILE                  one time in seconds a line (the first column of a CSV file)

The same spec, rate and seed give the same instants in the simulator and in the load generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LEAST, _MOST = 1e-9, 1e9  # of numbers above 0: what follows of others is infinite, or 0
CHUNK = 65_536  # instants drawn at a time: half a MiB
_S = 1e9  # nanoseconds

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A stream of instants in order, endless except for traces. `rate` is the long-run mean per second.

    `chunks()` yields the instants from the start; each call starts again.
    """

    rate: float
    chunks: Callable[[], Iterator[Instants]]


def make(spec: str, rate: float | None, seed: int) -> Arrivals:
    """Arrivals from their spec. Raises ValueError for a bad one.

    `rate` is per second. A trace is stretched to the rate, or keeps its own times if it is None.
    """
    kind, _, text = spec.partition(":")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate: expected requests per second above 0, got {rate!r}")
    if kind == "trace":
        return _trace(Path(text), rate)
    if rate is None:
        raise ValueError(f"rate: arrivals {spec!r} need one")
    given = rate  # not None, for the type checker
    if kind in ("poisson", "uniform") and not text:
        return Arrivals(given, lambda: gaps(given, 1.0 if kind == "poisson" else 0.0, seed))
    if kind == "gamma":
        (cv,) = _numbers(spec, text.split(":"), 1)
        return Arrivals(given, lambda: gaps(given, cv, seed))
    if kind == "steps":
        steps = np.array([_numbers(spec, step.split("x"), 2) for step in text.split(",")])
        return _steps(given, steps[:, 0], steps[:, 1], seed)
    if kind == "diurnal":
        period, amplitude = _numbers(spec, text.split(":"), 2)
        if period <= 0 or amplitude > 1:
            raise ValueError(f"arrivals: diurnal expected a period above 0 s, amplitude 0 to 1, got {text}")
        return Arrivals(given, lambda: _diurnal(given, period, amplitude, seed))
    if kind == "bursty":
        on, off = _numbers(spec, text.split(":"), 2)
        if on <= 0:
            raise ValueError(f"arrivals: bursty expected a time on above 0 s, got {on:g}")
        return Arrivals(given, lambda: _bursty(given, on, off, seed))
    raise ValueError(
        "arrivals: expected poisson, uniform, gamma:CV, steps:FxS,..., diurnal:PERIOD_S:AMPLITUDE, bursty:ON_S:OFF_S "
        f"or trace:FILE, got {spec!r}"
    )


def gaps(rate: float, cv: float, seed: int) -> Iterator[Instants]:
    """Independent gaps with a gamma distribution: `cv` 1 is exponential, 0 is constant."""
    random = np.random.default_rng(seed)
    mean = _S / rate
    start = drawn = 0
    while True:
        if cv == 0:  # not a sum of rounded gaps, which would drift
            instants = np.rint(np.arange(drawn + 1, drawn + CHUNK + 1) * mean).astype(np.int64)
        elif cv == 1:
            instants = start + np.rint(random.exponential(mean, CHUNK)).astype(np.int64).cumsum()
        else:
            shape = cv**-2
            instants = start + np.rint(random.gamma(shape, mean / shape, CHUNK)).astype(np.int64).cumsum()
        start = int(instants[-1])
        drawn += CHUNK
        yield instants


def _steps(rate: float, factors: NDArray[np.float64], lengths: NDArray[np.float64], seed: int) -> Arrivals:
    """A rate that repeats steps of (factor, seconds): a Poisson process in operational time, mapped to real time."""
    if (lengths <= 0).any() or factors.max() <= 0:
        got = np.stack([factors, lengths], axis=1).tolist()
        raise ValueError(f"arrivals: steps expected lengths above 0 s and a factor above 0, got {got}")
    ends = np.r_[0.0, lengths.cumsum()]
    areas = np.r_[0.0, (factors * lengths).cumsum()]  # expected requests / rate at each end

    def chunks() -> Iterator[Instants]:
        for clock in gaps(rate, 1.0, seed):
            cycle, area = np.divmod(clock / _S, areas[-1])
            step = np.minimum(np.searchsorted(areas, area, side="right") - 1, len(factors) - 1)
            within = ends[step] + (area - areas[step]) / factors[step]
            yield np.rint((cycle * ends[-1] + within) * _S).astype(np.int64)

    return Arrivals(float(rate * areas[-1] / ends[-1]), chunks)


def _diurnal(rate: float, period: float, amplitude: float, seed: int) -> Iterator[Instants]:
    """A sine around the rate by thinning (Lewis and Shedler): drawn at the peak, kept with probability rate / peak."""
    keep = np.random.default_rng([seed, 1])
    top = 1 + amplitude
    for instants in gaps(rate * top, 1.0, seed):
        height = 1 + amplitude * np.sin(instants * (2 * math.pi / (period * _S)))
        yield instants[keep.random(CHUNK) * top < height]


def _bursty(rate: float, on: float, off: float, seed: int) -> Iterator[Instants]:
    """An interrupted Poisson process: the gaps of a faster process with off periods inserted."""
    periods = np.random.default_rng([seed, 1])
    start = last = 0  # real time at the start of the chunk, and operational time then
    for clock in gaps(rate * (on + off) / on, 1.0, seed):  # operational time: a clock that runs only while on
        running = np.diff(clock, prepend=last)
        last = int(clock[-1])
        # An exponential period on has no memory: the off periods in a gap are Poisson in its length, and the sum
        # of so many exponential ones is gamma-distributed.
        pauses = periods.poisson(running / (on * _S))
        if off > 0:
            running = running + np.rint(periods.standard_gamma(pauses) * (off * _S)).astype(np.int64)
        instants = start + running.cumsum()
        start = int(instants[-1])
        yield instants


def _trace(path: Path, rate: float | None) -> Arrivals:
    """Recorded times, the first at 0, stretched to a mean rate if one is given."""
    count, first, last = 0, 0.0, 0.0
    for number, time in _times(path):
        if not count:
            first = time
        elif time < last:
            raise ValueError(f"{path}:{number}: expected times in order, got {time} after {last}")
        count, last = count + 1, time
    if count < 2 or last == first:
        raise ValueError(f"{path}: expected at least two times, got {count} over {last - first:g} s")
    own = (count - 1) / (last - first)
    rate = own if rate is None else rate
    scale = own / rate * _S

    def chunks() -> Iterator[Instants]:
        times = (time for _, time in _times(path))
        while chunk := list(islice(times, CHUNK)):
            yield np.rint((np.array(chunk) - first) * scale).astype(np.int64)

    return Arrivals(rate, chunks)


def _times(path: Path) -> Iterator[tuple[int, float]]:
    """Line numbers and times. A first line that is not a number is a header; what follows a # is a comment."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].replace(",", " ").split()
            if not words:
                continue
            try:
                time = float(words[0])
            except ValueError:
                if number == 1:
                    continue
                time = math.nan
            if not math.isfinite(time):
                raise ValueError(f"{path}:{number}: expected a time in seconds, got {words[0]!r}")
            yield number, time


def _numbers(spec: str, texts: list[str], count: int) -> list[float]:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"arrivals: {spec!r} is not understood; see the forms there are")
    if not all(number == 0 or _LEAST <= number <= _MOST for number in numbers):
        raise ValueError(f"arrivals: expected numbers that are 0, or from {_LEAST:g} to {_MOST:g}, got {spec!r}")
    return numbers
