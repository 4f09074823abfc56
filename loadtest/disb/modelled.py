"""A simple model of REEF's GPU and its five models: kernels, what runs at once, and what handing work over costs.

Assumptions, which the page lists
    1. A model has as many kernels, and takes as long alone, as in REEF's Table 1. The paper gives no single kernel
       times, only that VGG's lie between 10 and 255 us. Here a model's kernels have the quantiles of a lognormal
       distribution with sigma `SPREAD`, in an order drawn from a seed; VGG's are then 14 to 300 us.
    2. A stage is a number of kernels, a unit one stage or several. It begins `LAUNCH_US` after it is handed to an idle
       worker, in which the device does nothing: REEF's queue of one kernel makes ResNet's 307 kernels 2 ms slower. A
       worker that goes on by itself does so at once, and looks between two stages whether it is recalled.
    3. While k units run, each takes 1 + `SHARED` (k - 1) times as long as alone, whatever their models. The factor is
       fitted to one published figure, the throughput of GPUStreams under REAL, which is 8.3 times that of RT-Only.
    4. Nothing is killed and nothing is taken back: a stage that has begun runs to its end.
    5. A client whose next instant has passed, or that runs in a closed loop, launches before the next unit is chosen.
       With any turnaround a best-effort unit would begin first in each such gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

import numpy as np

from app.scheduler.types import Profile, Program, Stage, Unit
from loadtest.common.slowed import EquallySlowed

SPREAD = 0.65
LAUNCH_US = 6.5
SHARED = 0.36
WHOLE = 0  # kernels of a unit: all of the model's
_SEED = 2022


@dataclass(frozen=True, slots=True)
class Network:
    """One of the paper's models. `total_ms`: its latency alone, all kernels handed over at once."""

    name: str
    kernels: int
    total_ms: float

    def kernel_ns(self) -> tuple[float, ...]:
        """The time of each kernel, in order."""
        return _kernel_ns(self)

    def stages(self, group: int) -> tuple[int, ...]:
        """Nanoseconds of each stage, where stages are `group` kernels; the last may have fewer. WHOLE: one stage."""
        times = self.kernel_ns()
        size = group or len(times)
        return tuple(round(sum(times[at : at + size])) for at in range(0, len(times), size))

    def program(self, number: int, group: int) -> Program:
        """One request is one row, and rows never share a unit, as in the paper: its batch size is 1."""
        stages = tuple(Stage(Profile((time,))) for time in self.stages(group))
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


class ModelledGpu(EquallySlowed):
    """A simulator's Device that runs units of these programs. `shared`: by what each further one at once slows all.

    A unit of several stages runs them without a pause, and ends with the one that runs if it is recalled.
    """

    def __init__(self, programs: Sequence[Program], shared: float = SHARED) -> None:
        self._times = {one.id: [stage.profile.batch_ns[0] for stage in one.stages] for one in programs}
        self._made: dict[int, int] = {}  # by id of a recalled unit: its stages until it ends
        super().__init__(lambda unit: float(sum(self.stage_ns(unit))), lambda units: 1 + shared * (len(units) - 1))

    def stage_ns(self, unit: Unit) -> list[int]:
        """What each stage of a unit takes alone; after a recall, of those that it still runs."""
        stages = self._made.get(unit.id, unit.steps)
        return self._times[unit.program][unit.stage : unit.stage + stages]

    def recall(self, unit: Unit, now: int) -> None:
        """Let the unit end with the stage that runs."""
        times = self.stage_ns(unit)

        def until(run_ns: float) -> float:
            ends = list(accumulate(times))
            self._made[unit.id] = next((number for number, end in enumerate(ends, 1) if end > run_ns), len(ends))
            return float(ends[self._made[unit.id] - 1])

        self.cut(unit, until, now)

    def forget(self, unit: Unit) -> None:
        """The unit has ended and been reported."""
        self._made.pop(unit.id, None)
