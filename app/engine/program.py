"""Makes the scheduler's Program, and the Profile of each stage, from a served model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.engine.executor import Executor
from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import policy_for
from app.scheduler.types import PolicySpec, Program, Stage


def program_of(ident: int, executor: Executor, profiles: Sequence[Profile], max_alive: int) -> Program:
    """The program, with a stage for each profile; a model that runs by its cell has one stage that repeats."""
    info, steps = executor.model.info, executor.steps
    batching = info.batching
    stages = tuple(map(Stage, profiles))
    if steps is not None:
        stages = (Stage(profiles[0], repeats=True, most_steps=steps.most, own_steps=steps.own),)
    return Program(
        id=ident,
        name=info.name,
        stages=stages,
        policy=PolicySpec(
            policy_for(batching.policy, batching.objective),
            max_delay_ns=int(batching.max_delay_ms * 1e6),
            reorder=batching.reorder,
            complete_wait=batching.complete_wait,
        ),
        max_batch=batching.max_batch,
        max_queue=batching.max_queue,
        length_buckets=batching.length_buckets,
        max_alive=max_alive,
        one_unit=executor.one_unit,
    )


def stage_profiles(profile: Profile) -> tuple[Profile, ...]:
    """The profile of each stage; for a model that runs by its cell, of one step.

    If the hand-over was not measured it starts at 0, and is learnt from the first batch on.
    """
    return replace(profile, handover_ns=profile.handover_ns or 0).of_stages()
