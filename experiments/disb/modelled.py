"""REEF's five models in kernels, as the scheduler is given them.

Assumptions, which the page lists
    1. A model has as many kernels, and takes as long alone, as in REEF's Table 1. The paper gives no single kernel
       times, only that VGG's lie between 10 and 255 us. Here a model's kernels have the quantiles of a lognormal
       distribution with sigma `SPREAD`, in an order drawn from a seed; VGG's are then 14 to 300 us.
    2. Real-time requests, and all where nothing is preempted, are one unit: all kernels handed over at once. A
       best-effort request is a program of a stage for each kernel, which a worker runs by itself until it is recalled.
    3. How much a real-time program is slowed by a best-effort one that fills what it leaves free is made up: the 25
       pairs have the quantiles of mean x 3 u^2, u uniform in 0 to 1. With a mean of 1 % the most is 3 %: what is
       published of dynamic kernel padding. They are in order of the best-effort model's mean kernel over that of the
       real-time model: REEF's rule 1 wants kernels that end sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import NormalDist

import numpy as np

from app.scheduler.types import Profile, Program, Stage

SPREAD = 0.65
SLOWER = 0.01
WHOLE = 0  # kernels of a unit: all of the model's
_SEED = 2022


@dataclass(frozen=True, slots=True)
class Network:
    """One of the paper's models. `total_ms`: its latency alone, all kernels handed over at once."""

    name: str
    kernels: int
    total_ms: float

    @property
    def mean_ms(self) -> float:
        """Of a kernel."""
        return self.total_ms / self.kernels

    def kernel_ns(self) -> tuple[float, ...]:
        """The time of each kernel, in order."""
        return _kernel_ns(self)

    def groups(self, size: int) -> tuple[int, ...]:
        """Nanoseconds of each group of `size` kernels; the last may have fewer. WHOLE: one group."""
        times = self.kernel_ns()
        size = size or len(times)
        return tuple(round(sum(times[at : at + size])) for at in range(0, len(times), size))

    def staged(self, number: int, size: int) -> Program:
        """A stage for each group. One request is one row, and rows never share a unit: the paper's batch size is 1."""
        stages = tuple(Stage(Profile((time,))) for time in self.groups(size))
        return Program(number, self.name, stages, "no_wait", 1, 1 << 30)


@lru_cache(maxsize=16)
def _kernel_ns(network: Network) -> tuple[float, ...]:
    shares = [(at + 0.5) / network.kernels for at in range(network.kernels)]
    sizes = np.exp([SPREAD * NormalDist().inv_cdf(share) for share in shares])
    shuffled = np.random.default_rng(_SEED).permutation(sizes)
    return tuple((shuffled / shuffled.sum() * network.total_ms * 1e6).tolist())


NETWORKS = (
    Network("resnet152", 307, 13.6),
    Network("densenet201", 207, 3.5),
    Network("vgg19", 55, 4.4),
    Network("inceptionv3", 146, 8.3),
    Network("distilbert", 205, 5.4),
)


def network(name: str) -> Network:
    """Raises ValueError for a model that the paper has not."""
    for known in NETWORKS:
        if known.name == name:
            return known
    raise ValueError(f"model: expected one of {', '.join(one.name for one in NETWORKS)}, got {name!r}")


def pairs(mean: float) -> dict[tuple[str, str], float]:
    """By (real-time model, best-effort model): by what part of its time the first is slowed. Made up."""
    count = len(NETWORKS) ** 2
    slower = [mean * 3 * ((at + 0.5) / count) ** 2 for at in range(count)]
    order = sorted(product(NETWORKS, NETWORKS), key=lambda pair: pair[1].mean_ms / pair[0].mean_ms)
    return {(one.name, other.name): part for (one, other), part in zip(order, slower, strict=True)}
