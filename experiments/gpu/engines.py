"""Starling's engine in this process, without HTTP, on the device of a block, and models made of modules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from app import process
from app.contract import Batching, Checks, Model, ModelInfo, TensorSpec
from app.engine.device import DeviceOptions
from app.engine.engine import Engine
from app.engine.memory import Memory
from app.engine.profiling.profiled_model import Origin
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.engine_setup import make_device
from app.models import Staged
from app.models.placement import Placement
from app.scheduler.policies import policy_class
from app.scheduler.types import ClassSpec
from experiments.common.baselines import scheduler_of
from experiments.gpu.blocks import Block

_POOL_BYTES = 4 << 30
_POLL_S = 0.02
_ENDS_S = 10.0

Made = TypeVar("Made")


@dataclass(frozen=True)
class Setup:
    """The engine that is asked for. `workers`: capacities. `baseline`: its order and share, see
    `experiments.common.baselines`. `keeps_one`: a worker, and its stream's priority, is kept for real time.
    `measures_s`: batches are measured so long before the load; 0: the warm-up's times are used.
    """

    workers: tuple[int, ...] = (32,)
    classes: ClassSpec = field(default_factory=ClassSpec)
    baseline: str = "reef"
    keeps_one: bool = False
    graphs: bool = True
    precision: str = "fp16"
    push_ahead_ns: int | None = None
    measures_s: float = 0.0


@asynccontextmanager
async def engine_of(block: Block, setup: Setup) -> AsyncIterator[Engine]:
    """A started engine. Raises what ends the device, when it is left."""
    options = DeviceOptions(
        placement=Placement(precision=setup.precision if block.cuda else "fp32"),
        push_ahead_ns=setup.push_ahead_ns,
        graphs=setup.graphs,
        keeps_one=setup.keeps_one,
    )
    device = make_device(0 if block.cuda else None, setup.workers, 1, len(setup.workers), options)
    spec = replace(device.spec, classes=setup.classes)
    profiling = Profiling(device, None, block.seconds(setup.measures_s))
    async with Engine(
        profiling, scheduler_of(setup.baseline, spec), memory=Memory(_POOL_BYTES, _POOL_BYTES, on_gpu=block.cuda)
    ) as engine:
        yield engine
        if engine.driver.lost is not None:
            raise RuntimeError(f"the device was lost: {engine.driver.lost}")


def own_setup(policy: str, max_batch: int, **options: Any) -> Setup:
    """The workers that a policy asks for, for batches of up to so many rows."""
    own = policy_class(policy).workers(max_batch)
    return Setup(own or (max_batch,), push_ahead_ns=0 if own else None, **options)


async def started(engine: Engine, model: Model) -> ServedModel:
    served = await engine.start(model)
    assert isinstance(served, ServedModel)
    return served


async def ready(engine: Engine, served: ServedModel, limit_s: float) -> str:
    """Wait until the model is measured and its tables are solved; where its batch times are from, and the tables."""
    engine.profiling.begin()
    policy = policy_class(served.info.batching.policy)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        plan = served.gauges().plan
        measured = not engine.profiling.spare or plan.origin == Origin.MEASURED
        if measured and (plan.tables or plan.cell or not policy.uses_tables):
            break
        await asyncio.sleep(_POLL_S)
    process.tune_garbage_collector()
    plan = served.gauges().plan
    return f"{plan.origin}{', tables' if plan.tables else ''}"


async def stopped(engine: Engine, served: ServedModel) -> None:
    async with asyncio.timeout(_ENDS_S):
        await engine.stop(served)


# models


def built(block: Block, make: Callable[[], Made]) -> Made:
    """What `make` returns, with its weights on the block's device. Waits for them: the engine uses other streams."""
    with torch.device(block.device):
        found = make()
    if block.cuda:
        torch.cuda.synchronize()
    return found


def tensor(name: str, datatype: str, *shape: int | tuple[str, int], **more: Any) -> TensorSpec:
    """A specification; an axis given as (name, bound) is variable."""
    axes = tuple("" if isinstance(axis, int) else axis[0] for axis in shape)
    bounds = tuple(axis if isinstance(axis, int) else axis[1] for axis in shape)
    fixed = tuple(axis if isinstance(axis, int) else -1 for axis in shape)
    return TensorSpec(name, datatype, fixed, axes, bounds, **more)


def model_of(
    call: nn.Module | Sequence[nn.Module],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    name: str,
    version: str = "1",
    row_check: str = "off",
    again: Sequence[Sequence[int]] = (),
    **batching: Any,
) -> Model:
    """A model of one module, or in stages."""
    info = ModelInfo(name, version, "torch", tuple(inputs), tuple(outputs), Batching(**batching))
    if isinstance(call, nn.Module):
        return Model(info, call.eval(), checks=Checks(row_check=row_check))
    staged = Staged(call, again).eval()
    return Model(info, staged, checks=Checks(row_check=row_check), stages=staged.parts)
