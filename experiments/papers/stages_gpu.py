"""DVABatch's six networks in stages, and a GPU that runs several stages at once while it has room."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from app.scheduler.estimates.profile import Profile
from app.scheduler.types import Unit
from experiments.common.networks import TOKENS, Network
from experiments.common.slowed import EquallySlowed
from planner.drawn_lengths import mean

_PAIRS = 4  # the most units at once


def busy(network: Network, stage: int, size: int, length: int = TOKENS) -> float:
    """The share of the GPU that a unit alone keeps busy, on average over its time."""
    rows = size * length / TOKENS
    return network.row_ms / len(network.fills) * rows / network.time_ms(stage, size, length)


def profile(network: Network) -> Profile:
    """The network's profile, with the times of equal units of a stage that run at once."""
    made = network.profile()
    typical = round(mean(network.lengths)) if network.lengths else TOKENS

    def together(stage: int, units: int) -> tuple[int, ...]:
        times = enumerate(made.stages[stage].batch_ns, 1)
        return tuple(round(time * max(1.0, units * busy(network, stage, size, typical))) for size, time in times)

    stages = tuple(
        replace(one, concurrency_ns={units: together(stage, units) for units in range(2, _PAIRS + 1)})
        for stage, one in enumerate(made.stages)
    )
    return replace(made, stages=stages)


class StagesGpu(EquallySlowed):
    """One executor for each stage, which runs one unit at a time; those of different stages share the GPU.

    Units do not slow one another while they keep less than the whole GPU busy, and all alike beyond.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(
            lambda unit: network.time_ms(unit.stage, unit.size, unit.forecast.length or TOKENS) * 1e6,
            lambda units: max(
                1.0, sum(busy(network, unit.stage, unit.size, unit.forecast.length or TOKENS) for unit in units)
            ),
        )
        self._queues: dict[int, deque[Unit]] = {}  # by stage that is busy: units that wait for its executor

    def push(self, unit: Unit, now: int) -> None:
        if unit.stage in self._queues:
            self._queues[unit.stage].append(unit)
            return
        self._queues[unit.stage] = deque()
        super().push(unit, now)

    def pop(self, now: int) -> tuple[Unit, int]:
        ended, spent = super().pop(now)
        queue = self._queues.pop(ended.stage)
        if queue:
            self._queues[ended.stage] = queue
            super().push(queue.popleft(), now)
        return ended, spent
