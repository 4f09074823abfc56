"""Arrival times of requests, from seeded processes and traces, as arrays of integer nanoseconds in chunks.

    poisson                     independent requests
    uniform                     one every 1 / rate
    gamma:CV                    gaps with a gamma distribution of this coefficient of variation (1 is poisson)
    steps:FxS,FxS,...           poisson at F times the rate for S seconds each, repeated: steps:0.5x10,2x5
    diurnal:PERIOD_S:AMPLITUDE  poisson at rate x (1 + AMPLITUDE sin(2 pi t / PERIOD_S)), AMPLITUDE at most 1
    bursty:ON_S:OFF_S           poisson while on, nothing while off, both exponential with these means; the mean is kept
    trace:FILE                  one time in seconds a line (the first column of a CSV file), in order

The same spec, rate and seed give the same instants in the simulator and in the load generator. Memory does not grow
with their number: a process yields chunks, and a trace is read while it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK = 65_536  # instants drawn at a time: half a MiB
_S = 1e9  # nanoseconds

Instants = NDArray[np.int64]


class Arrivals(Protocol):
    """A stream of instants in order, endless except for traces. `rate` is the long-run mean per second."""

    @property
    def rate(self) -> float: ...

    def chunks(self) -> Iterator[Instants]:
        """The instants from the start; each call begins again."""
        ...


def make(spec: str, rate: float | None, seed: int) -> Arrivals:
    """Arrivals from their spec. Raises ValueError for a bad one.

    `rate` is per second. A trace is stretched to the rate, or keeps its own times if it is None.
    """
    kind, _, text = spec.partition(":")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate: expected requests per second above 0, got {rate!r}")
    if kind == "trace":
        return Trace(Path(text), rate)
    if rate is None:
        raise ValueError(f"rate: arrivals {spec!r} need one")
    if kind in ("poisson", "uniform") and not text:
        return Gaps(rate, 1.0 if kind == "poisson" else 0.0, seed)
    if kind == "gamma":
        (cv,) = _numbers(spec, text.split(":"), 1)
        return Gaps(rate, cv, seed)
    if kind == "steps":
        steps = [_numbers(spec, step.split("x"), 2) for step in text.split(",")]
        return Steps(rate, [(factor, length) for factor, length in steps], seed)
    if kind == "diurnal":
        period, amplitude = _numbers(spec, text.split(":"), 2)
        return Diurnal(rate, period, amplitude, seed)
    if kind == "bursty":
        on, off = _numbers(spec, text.split(":"), 2)
        return Bursty(rate, on, off, seed)
    raise ValueError(
        "arrivals: expected poisson, uniform, gamma:CV, steps:FxS,..., diurnal:PERIOD_S:AMPLITUDE, bursty:ON_S:OFF_S "
        f"or trace:FILE, got {spec!r}"
    )


@dataclass(frozen=True, slots=True)
class Gaps:
    """Independent gaps with a gamma distribution: `cv` 1 is exponential, 0 is constant."""

    rate: float
    cv: float
    seed: int

    def chunks(self) -> Iterator[Instants]:
        random = np.random.default_rng(self.seed)
        mean = _S / self.rate
        start = drawn = 0
        while True:
            if self.cv == 0:  # no sum of rounded gaps, which would drift
                instants = np.rint(np.arange(drawn + 1, drawn + CHUNK + 1) * mean).astype(np.int64)
            elif self.cv == 1:
                instants = start + np.rint(random.exponential(mean, CHUNK)).astype(np.int64).cumsum()
            else:
                shape = self.cv**-2
                instants = start + np.rint(random.gamma(shape, mean / shape, CHUNK)).astype(np.int64).cumsum()
            start = int(instants[-1])
            drawn += CHUNK
            yield instants


class Steps:
    """A rate that repeats (factor, seconds) steps. Poisson in operational time, mapped to real time."""

    def __init__(self, rate: float, steps: list[tuple[float, float]], seed: int) -> None:
        factors = np.array([factor for factor, _ in steps])
        lengths = np.array([length for _, length in steps])
        if (lengths <= 0).any() or factors.max() <= 0:
            raise ValueError(
                f"arrivals: steps expected lengths above 0 s and a factor above 0, got {list(map(list, steps))}"
            )
        self.seed = seed
        self._ends = np.r_[0.0, lengths.cumsum()]
        self._area = np.r_[0.0, (factors * lengths).cumsum()]  # expected requests / rate at each end
        self._factors = factors
        self._base = rate
        self.rate = float(rate * self._area[-1] / self._ends[-1])

    def chunks(self) -> Iterator[Instants]:
        for clock in Gaps(self._base, 1.0, self.seed).chunks():
            cycle, area = np.divmod(clock / _S, self._area[-1])
            step = np.searchsorted(self._area, area, side="right") - 1
            step = np.minimum(step, len(self._factors) - 1)
            within = self._ends[step] + (area - self._area[step]) / self._factors[step]
            yield np.rint((cycle * self._ends[-1] + within) * _S).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A sine around the rate by thinning (Lewis and Shedler): drawn at the peak, kept with probability rate / peak."""

    rate: float
    period: float  # seconds
    amplitude: float
    seed: int

    def __post_init__(self) -> None:
        if self.period <= 0 or self.amplitude > 1:
            raise ValueError(
                f"arrivals: diurnal expected a period above 0 s, amplitude 0 to 1, got {self.period}:{self.amplitude}"
            )

    def chunks(self) -> Iterator[Instants]:
        keep = np.random.default_rng([self.seed, 1])
        top = 1 + self.amplitude
        for instants in Gaps(self.rate * top, 1.0, self.seed).chunks():
            height = 1 + self.amplitude * np.sin(instants * (2 * math.pi / (self.period * _S)))
            yield instants[keep.random(CHUNK) * top < height]


@dataclass(frozen=True, slots=True)
class Bursty:
    """An interrupted Poisson process: the gaps of a faster process with off periods inserted."""

    rate: float
    on: float  # mean seconds
    off: float
    seed: int

    def __post_init__(self) -> None:
        if self.on <= 0:
            raise ValueError(f"arrivals: bursty expected a time on above 0 s, got {self.on:g}")

    def chunks(self) -> Iterator[Instants]:
        periods = np.random.default_rng([self.seed, 1])
        start = 0  # real time at the start of the chunk
        last = 0
        share = self.on / (self.on + self.off)
        for clock in Gaps(self.rate / share, 1.0, self.seed).chunks():  # a clock that runs only while on
            gaps = np.diff(clock, prepend=last)
            last = int(clock[-1])
            # An exponential period on has no memory: the off periods in a gap are Poisson in its length, and the sum
            # of so many exponential ones is gamma-distributed.
            pauses = periods.poisson(gaps / (self.on * _S))
            if self.off > 0:
                gaps = gaps + np.rint(periods.standard_gamma(pauses) * (self.off * _S)).astype(np.int64)
            instants = start + gaps.cumsum()
            start = int(instants[-1])
            yield instants


class Trace:
    """Recorded times, the first at 0, stretched to a mean rate if one is given."""

    def __init__(self, path: Path, rate: float | None) -> None:
        self._path = path
        count, self._first, last = 0, 0.0, 0.0
        for number, time in self._times():
            if not count:
                self._first = time
            elif time < last:
                raise ValueError(f"{path}:{number}: expected times in order, got {time} after {last}")
            count, last = count + 1, time
        if count < 2 or last == self._first:
            raise ValueError(f"{path}: expected at least two times, got {count} over {last - self._first:g} s")
        own = (count - 1) / (last - self._first)
        self.rate = own if rate is None else rate
        self._scale = own / self.rate * _S

    def chunks(self) -> Iterator[Instants]:
        chunk: list[float] = []
        for _, time in self._times():
            chunk.append(time)
            if len(chunk) == CHUNK:
                yield self._instants(chunk)
                chunk = []
        if chunk:
            yield self._instants(chunk)

    def _instants(self, times: list[float]) -> Instants:
        return np.rint((np.array(times) - self._first) * self._scale).astype(np.int64)

    def _times(self) -> Iterator[tuple[int, float]]:
        """Line numbers and times. A first line that is not a number is a header; what follows a # is a comment."""
        with self._path.open(encoding="utf-8") as file:
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
                    raise ValueError(f"{self._path}:{number}: expected a time in seconds, got {words[0]!r}")
                yield number, time


def _numbers(spec: str, texts: list[str], count: int) -> list[float]:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(f"arrivals: {spec!r} is not understood; see the forms there are")
    return numbers
