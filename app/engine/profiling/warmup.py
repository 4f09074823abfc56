"""Before a model serves: each batch size runs once, what comes back is checked, and the times are a first profile."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter_ns

import torch

from app.contract import ModelInfo
from app.engine.devices.base import Device, Executor
from app.engine.devices.pool import Pool, Slots
from app.errors import ConfigError
from app.models.base import example_inputs, verify
from app.scheduler.types import Profile

log = logging.getLogger("starling.engine")

LENGTH = 16  # of variable axes where none is given: every size at full length would take minutes for an encoder
_BUDGET_NS = 10_000_000_000  # beyond it only powers of two are run, and the times between are interpolated


def lengths_of(info: ModelInfo, length: int = LENGTH) -> dict[str, int]:
    """The length of each variable axis: `length`, or the axis' bound where that is less."""
    return {axis: min(bound, length) for axis, bound in _bounds_of(info).items()}


def _bounds_of(info: ModelInfo) -> dict[str, int]:
    return {axis: bound for spec in info.inputs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}


def fill(pool: Pool, slots: Slots, lengths: Mapping[str, int]) -> None:
    """Write example rows into the slots. Copies: not for the event loop where rows are large."""
    for index, value in enumerate(example_inputs(pool.specs, len(slots), lengths)):
        if isinstance(value, torch.Tensor):
            value = (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()
        pool.write(slots, index, value)
    pool.set_lengths(slots, lengths)


def warm_up(device: Device, executor: Executor, max_batch: int) -> Profile:
    """Run every batch size once and check what comes back. Slow: not for the event loop.

    Uses the first slots: only for a pool that serves nobody yet. Raises ConfigError when the model raises or does not
    return what it declares.
    """
    info = executor.model.info
    full, short = _bounds_of(info), lengths_of(info)
    times: dict[int, int] = {}
    begin = perf_counter_ns()
    try:
        try_batch(device, executor, 1, full)  # first-use costs, and variable axes at their bounds
        for size in range(1, max_batch + 1):
            over = perf_counter_ns() - begin > _BUDGET_NS
            if not over or size == max_batch or size & (size - 1) == 0:
                times[size] = try_batch(device, executor, size, short)
        if full != short and executor.keeps_memory:
            try_batch(device, executor, max_batch, full)  # or the first such batch would wait for memory
    except ConfigError as exc:
        who = f"model {info.name!r}"
        raise ConfigError(str(exc) if str(exc).startswith(who) else f"{who}: {exc}") from exc
    except Exception as exc:
        raise ConfigError(f"model {info.name!r}: warm-up failed: {type(exc).__name__}: {exc}") from exc
    log.debug("model %s: warmed up in %.2f s", info.name, (perf_counter_ns() - begin) / 1e9)
    return Profile(_filled(times, max_batch))


def try_batch(device: Device, executor: Executor, size: int, lengths: Mapping[str, int]) -> int:
    """Run a batch of examples at `size`, check it, and return the nanoseconds that it occupied a worker."""
    slots = range(size)
    fill(executor.pool, slots, lengths)
    ran = device.trial(executor, slots, size)
    verify(executor.model.info, ran.outputs, size, lengths)
    return ran.busy_ns


def _filled(times: dict[int, int], max_batch: int) -> tuple[int, ...]:
    """A time for each size 1..max_batch; sizes left out lie on the line between their neighbours."""
    sizes = sorted(times)
    filled: list[int] = []
    for size in range(1, max_batch + 1):
        if size in times:
            filled.append(times[size])
            continue
        below = max(s for s in sizes if s < size)
        above = min(s for s in sizes if s > size)
        share = (size - below) / (above - below)
        filled.append(int(times[below] + share * (times[above] - times[below])))
    return tuple(filled)
