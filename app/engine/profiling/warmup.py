"""Before a model serves: a queue that fits in memory, each batch size run once, the first profile from it."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter_ns

import torch

from app.contract import Model, ModelInfo
from app.engine.devices.cpu.executor import Executor
from app.engine.devices.pool import slot_bytes
from app.errors import ConfigError
from app.scheduler.types import DeviceSpec, Profile, Program, Stage

log = logging.getLogger("starling.engine")

_LENGTH = 16  # of variable axes while warming up: every size at full length would take minutes for an encoder
_BUDGET_NS = 10_000_000_000  # beyond it only powers of two are run, and the times between are interpolated


def fit(model: Model, spec: DeviceSpec, spare_batches: int, pool_bytes: int) -> tuple[Model, int, int]:
    """The model with what this device can hold of it, the rows of `spare_batches`, and the slots that it needs in all.

    A batch is no larger than the largest worker; the queue is cut so that all slots take at most `pool_bytes`.
    """
    batching = model.info.batching
    largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
    model = replace(model, info=replace(model.info, batching=replace(batching, max_batch=largest)))
    spare = largest * spare_batches
    running = largest * len(spec.workers) * spec.push_depth + spare
    model = fit_queue(model, running, pool_bytes)
    return model, spare, model.info.batching.max_queue + running


def program_of(ident: int, info: ModelInfo, profile: Profile) -> Program:
    """The model as the scheduler sees it."""
    batching = info.batching
    return Program(
        id=ident,
        name=info.name,
        stages=(Stage(profile),),
        policy=batching.policy,
        max_batch=batching.max_batch,
        max_queue=batching.max_queue,
        max_delay_ns=int(batching.max_delay_ms * 1e6),
        length_buckets=batching.length_buckets,
    )


def fit_queue(model: Model, running: int, pool_bytes: int) -> Model:
    """The model, with a queue cut so that the slots for it and for `running` rows take at most `pool_bytes`."""
    batching = model.info.batching
    row = slot_bytes(model.info.inputs)
    if row * (batching.max_queue + running) <= pool_bytes:
        return model
    queue = max(batching.max_batch, pool_bytes // row - running)
    if queue >= batching.max_queue:
        return model
    log.warning(
        "model %s: the queue is cut from %d to %d rows, so that its slots of %.1f KiB fit in %d MiB",
        model.info.name, batching.max_queue, queue, row / 1024, pool_bytes >> 20,
    )  # fmt: skip
    return replace(model, info=replace(model.info, batching=replace(batching, max_queue=queue)))


def warm_up(executor: Executor, max_batch: int) -> Profile:
    """Run every batch size once and check what comes back. Slow: not for the event loop.

    Raises ConfigError when the model raises or does not return what it declares.
    """
    info = executor.model.info
    full = {axis: bound for spec in info.inputs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}
    short = {axis: min(bound, _LENGTH) for axis, bound in full.items()}
    times: dict[int, int] = {}
    begin = perf_counter_ns()
    try:
        with torch.inference_mode():
            executor.warm(1, full)  # first-use costs, and variable axes at their bounds
            for size in range(1, max_batch + 1):
                over = perf_counter_ns() - begin > _BUDGET_NS
                if not over or size == max_batch or size & (size - 1) == 0:
                    times[size] = executor.warm(size, short)
            if full != short and executor.keeps_memory:
                executor.warm(max_batch, full)  # or the first such batch would wait for memory while others are served
    except ConfigError as exc:
        who = f"model {info.name!r}"
        raise ConfigError(str(exc) if str(exc).startswith(who) else f"{who}: {exc}") from exc
    except Exception as exc:
        raise ConfigError(f"model {info.name!r}: warm-up failed: {type(exc).__name__}: {exc}") from exc
    log.debug("model %s: warmed up in %.2f s", info.name, (perf_counter_ns() - begin) / 1e9)
    return Profile(_filled(times, max_batch))


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
