"""A model as this device can hold it, and as the scheduler sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from app.contract import Model, ModelInfo
from app.engine.devices.base import Steps
from app.engine.devices.pool import slot_bytes
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import DeviceSpec, Profile, Program, Stage

log = logging.getLogger("starling.engine")


def fit(model: Model, spec: DeviceSpec, spare_batches: int, pool_bytes: int) -> tuple[Model, int, int]:
    """The model with the limits that this device can hold, the rows of `spare_batches`, and the slots needed in all.

    A batch is no larger than the largest worker; the queue is cut so that all slots take at most `pool_bytes`.
    """
    batching = model.info.batching
    largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
    model = replace(model, info=replace(model.info, batching=replace(batching, max_batch=largest)))
    spare = largest * spare_batches
    running = largest * len(spec.workers) * spec.push_depth + spare
    model = fit_queue(model, running, pool_bytes)
    return model, spare, model.info.batching.max_queue + running


def fit_queue(model: Model, running: int, pool_bytes: int) -> Model:
    """The model, with a queue cut so that the slots for it and for `running` rows take at most `pool_bytes`."""
    batching = model.info.batching
    row = slot_bytes(model.info.client_inputs)
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


def program_of(ident: int, info: ModelInfo, profiles: Sequence[Profile], steps: Steps | None = None) -> Program:
    """The model as the scheduler sees it: a stage for each profile. `steps`: of one that runs by its cell."""
    batching = info.batching
    stages = tuple(map(Stage, profiles))
    if steps is not None:
        stages = (Stage(profiles[0], repeats=True, most_steps=steps.most, own_steps=steps.own),)
    return Program(
        id=ident,
        name=info.name,
        stages=stages,
        policy=batching.policy,
        max_batch=batching.max_batch,
        max_queue=batching.max_queue,
        max_delay_ns=int(batching.max_delay_ms * 1e6),
        length_buckets=batching.length_buckets,
    )


def stage_profiles(profile: ModelProfile, stages: int, running: int, *, cell: bool = False) -> list[Profile]:
    """The profile of each of so many stages, for up to `running` units at once; of one step where it is a `cell`.

    What is measured is the whole model. Its times are shared out as those of the stages were in warm-up, which the
    profile has under `stages`; equally, where it has nothing of them. Each is handed over, which costs something also
    where none knows yet how much: then it is learnt from the first batch on.
    """
    whole = replace(profile.stage(running), handover_ns=profile.handover_ns or 0)
    if cell and len(profile.stages) == 1:
        return [replace(profile.stages[0].stage(running), handover_ns=whole.handover_ns)]
    if stages < 2:
        return [whole]
    shares = _shares(profile.stages, stages, profile.max_batch)
    return [
        Profile(
            _part(whole.batch_ns, shares[stage]),
            tuple(_part(times, shares[stage]) for times in whole.concurrency_ns),
            handover_ns=whole.handover_ns,
        )
        for stage in range(stages)
    ]


def _part(batch_ns: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    return tuple(max(1, round(ns * share)) for ns, share in zip(batch_ns, shares, strict=True))


def _shares(parts: Sequence[ModelProfile], stages: int, max_batch: int) -> list[list[float]]:
    """By stage and size: the part of a batch's time. Other stages than the model has are left aside: it may have been
    cut elsewhere since, and profiles may be edited."""
    if len(parts) == stages and all(part.max_batch == max_batch for part in parts):
        wholes = [sum(times) for times in zip(*(part.batch_ns for part in parts), strict=True)]
        return [[time / whole for time, whole in zip(part.batch_ns, wholes, strict=True)] for part in parts]
    return [[1 / stages] * max_batch] * stages
