"""A model as this device can hold it, and as the scheduler sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from app.contract import CLASSES, Model, ModelInfo
from app.engine.activations import Activations
from app.engine.device import NO_BOUND, Steps
from app.engine.pool import slot_bytes
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import DeviceSpec, Profile, Program, Stage

log = logging.getLogger("starling.engine")

_MIB = 1 << 20


def fit(model: Model, spec: DeviceSpec, spare_batches: int, pool_bytes: int) -> tuple[Model, int, int]:
    """The model with the limits that this device can hold, the rows of `spare_batches`, and the slots needed in all.

    A batch is no larger than the largest worker; the queues are cut so that all slots take at most `pool_bytes`.
    """
    batching = model.info.batching
    largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
    model = replace(model, info=replace(model.info, batching=replace(batching, max_batch=largest)))
    spare = largest * spare_batches
    running = largest * len(spec.workers) * spec.push_depth + spare
    model = fit_queue(model, running, pool_bytes)
    return model, spare, len(CLASSES) * model.info.batching.max_queue + running


def fit_queue(model: Model, running: int, pool_bytes: int) -> Model:
    """The model, with queues cut so that the slots for them and for `running` rows take at most `pool_bytes`.

    Each class has a queue of its own, and slots of its own for it: otherwise rows of one that wait could take all.
    """
    batching = model.info.batching
    row = slot_bytes(model.info.client_inputs)
    if row * (len(CLASSES) * batching.max_queue + running) <= pool_bytes:
        return model
    queue = max(batching.max_batch, (pool_bytes // row - running) // len(CLASSES))
    if queue >= batching.max_queue:
        return model
    log.warning(
        "model %s: the queue of each class is cut from %d to %d rows, so that its slots of %.1f KiB fit in %d MiB",
        model.info.name, batching.max_queue, queue, row / 1024, pool_bytes // _MIB,
    )  # fmt: skip
    return replace(model, info=replace(model.info, batching=replace(batching, max_queue=queue)))


def most_alive(info: ModelInfo, activations: Activations | None, activation_bytes: int) -> int:
    """Rows that may be under way, so that what lies between their stages takes at most `activation_bytes`.

    A row counts twice, for what a stage reads and what it leaves, at the most that one has taken so far.
    """
    if activations is None or not activations.row_bytes:
        return NO_BOUND
    row, largest = 2 * activations.row_bytes, info.batching.max_batch
    rows = max(1, activation_bytes // row)
    if rows < largest:
        log.warning(
            "model %s: a batch of %d rows takes %.1f MiB between stages, more than activation_mib: cut to %d rows",
            info.name, largest, largest * row / _MIB, rows,
        )  # fmt: skip
    return rows


def program_of(
    ident: int,
    info: ModelInfo,
    profiles: Sequence[Profile],
    steps: Steps | None = None,
    max_alive: int = NO_BOUND,
) -> Program:
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
        max_alive=max_alive,
        reorder=batching.reorder,
        complete_wait=batching.complete_wait,
    )


def over_memory(limit: int | None, models: int, slots: int, between: int, bodies: int) -> str | None:
    """What a container's memory may not suffice for, None where it does. All but `models` are bytes.

    A quarter of it is left to the interpreter, torch, weights and what batches allocate.
    """
    if limit is None or slots + between + bodies <= limit * 3 // 4:
        return None
    return (
        f"memory: the slots of {models} models may take {slots // _MIB} MiB (--pool-mib for each), rows between stages"
        f" {between // _MIB} MiB (--activation-mib for each), bodies {bodies // _MIB} MiB (--max-inflight-mib): more"
        f" than 3/4 of the container's {limit // _MIB} MiB. Lower these, or raise its limit"
    )


def over_budget(profiles: Sequence[Profile], budget_ns: int, *, cell: bool = False) -> str | None:
    """What to say of a model of which one row takes longer at a stage than best-effort work may; None: it does not.

    `cell`: its stage is one step, which cannot be cut.
    """
    times = [profile.batch_ns[0] for profile in profiles if profile.batch_ns]
    if not times or max(times) <= budget_ns:
        return None
    stage = times.index(max(times))
    where = "a step" if cell else f"stage {stage}"
    told = (
        f"a row takes {times[stage] / 1e6:.3g} ms at {where}, more than the {budget_ns / 1e6:g} ms that "
        "best-effort work may keep a real-time request waiting (--preempt-budget-ms)"
    )
    return told if cell else f"{told}: {-(-sum(times) // budget_ns)} stages would fit, see `starling slice`"


def stage_profiles(profile: ModelProfile, stages: int, running: int, *, cell: bool = False) -> list[Profile]:
    """The profile of each of so many stages, for up to `running` units at once; of one step where it is a `cell`.

    Those that were measured; equal parts of the whole, where the profile has nothing of them or is of other stages (it
    may have been edited). Each is handed over, which costs something also where none knows yet how much: then it is
    learnt from the first batch on.
    """
    profile = replace(profile, handover_ns=profile.handover_ns or 0)
    whole = profile.stage(running)
    if cell and len(profile.stages) == 1:
        return [stage.profile for stage in profile.program_stages(running)]
    if stages < 2:
        return [whole]
    if len(profile.stages) == stages:
        return [stage.profile for stage in profile.program_stages(running)]
    part = replace(
        whole,
        batch_ns=_part(whole.batch_ns, stages),
        concurrency_ns=tuple(_part(times, stages) for times in whole.concurrency_ns),
        by_length=tuple((length, _part(times, stages)) for length, times in whole.by_length),
    )
    return [part] * stages


def _part(batch_ns: Sequence[int], stages: int) -> tuple[int, ...]:
    return tuple(max(1, ns // stages) for ns in batch_ns)
