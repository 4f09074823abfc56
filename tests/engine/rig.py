"""Small models, and an engine on a fake device that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fakes import HANGS, MS, FakeDevice, VirtualClock, VirtualLoop, virtual_loop
from specs import spec as tensor
from torch import nn

from app.contract import (
    Answer,
    Array,
    Batching,
    Checks,
    Lease,
    Model,
    ModelCall,
    ModelInfo,
    SampleRow,
    Stages,
    TensorSpec,
    awaited,
)
from app.engine.engine import Engine
from app.engine.profiling.cache import ProfileCache
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.models import Recurrent, Staged
from app.models.recurrent.cells import CellModel
from app.scheduler.scheduler import Scheduler

POISON = -1.0  # the model raises
HEAVY = -2.0  # it runs out of memory
FATAL = -3.0  # it ends the thread


X = tensor("x", "FP32", 2)
Y = tensor("y", "FP32", 2)


def strict(x: torch.Tensor) -> torch.Tensor:
    """Fails on rows that ask for it. It looks at values, which a graph may not."""
    first = x[:, 0].tolist()
    if FATAL in first:
        raise GeneratorExit("the model asked for it")
    if HEAVY in first:
        raise MemoryError("too heavy")
    if POISON in first:
        raise ValueError("poisoned")
    return x


@dataclass(eq=False)
class Affine:
    """y = 2 x + 1. Keeps the values it was called with, but for warm-up's ones; rows may ask it to fail."""

    batches: list[list[float]] = field(default_factory=list)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        first = x[:, 0].tolist()
        if set(first) != {1.0}:
            self.batches.append(first)
        return strict(x) * 2 + 1

    def saw(self, value: float) -> bool:
        return any(value in batch for batch in self.batches)


class Linear(nn.Module):
    """The same with weights. `look` is called with each batch before."""

    def __init__(self, look: Callable[[torch.Tensor], object] | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.look = look

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.look is not None:
            self.look(x)
        return x * self.scale + 1


def make_model(
    call: Callable[..., Any] | None = None, inputs: Sequence[TensorSpec] = (X,), outputs: Sequence[TensorSpec] = (Y,),
    *, name: str = "m", version: str = "1", takes_parameters: bool = False, row_check: str = "off",
    samples: Sequence[SampleRow] = (), stages: Sequence[Callable[..., Any]] = (), again: Sequence[Sequence[int]] = (),
    context: Callable[..., Any] | None = None, **batching: Any,
) -> Model:  # fmt: skip
    """Not checked for independent rows unless told so: what a model has seen is then what was asked of it."""
    batching.setdefault("policy", "no_wait")  # the default looks at measured times, and what it does depends on them
    info = ModelInfo(name, version, "test", tuple(inputs), tuple(outputs), Batching(**batching))
    staged = Staged(stages, again, context) if stages else None
    return Model(
        info,
        staged or (Affine() if call is None else call),
        read_parameters=(lambda given: None) if takes_parameters else None,
        checks=Checks(tuple(samples), row_check),
        stages=staged.parts if staged else Stages(),
    )


def recurrent(
    declared: Recurrent, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, row_check: str = "off",
    **batching: Any,
) -> Model:  # fmt: skip
    """A recurrent model of batches of four rows."""
    call = CellModel(declared, make_model(None, inputs, outputs, max_batch=4, **batching).info)
    info = call.info
    return Model(info, call, checks=Checks(row_check=row_check))


def rows_of(*values: float) -> Array:
    """One row of X for each value."""
    return np.array([[value, value + 0.5] for value in values], np.float32)


def answers(values: Array) -> Array:
    return values * 2 + 1


def assert_answer(answer: Any, *values: float) -> None:
    """It is the answer of an Affine to these rows."""
    assert np.array_equal(answer.outputs[0], answers(rows_of(*values)))


def raising(error: BaseException) -> Callable[..., Any]:
    """What raises this whenever it is called."""

    def call(*_: object, **__: object) -> Any:
        raise error

    return call


async def ends_of(*calls: Awaitable[Answer]) -> list[Any]:
    """The answer or the error of each."""
    return await asyncio.gather(*calls, return_exceptions=True)


def device(*capacities: int, ms: float | None = None, hangs: bool = False, **options: Any) -> FakeDevice:
    """Workers of these capacities. `ms`: what each batch takes, predicted as well; `hangs`: until it is released."""
    if ms is not None:
        options["batch_ns"] = lambda size: round(ms * MS)
    if hangs:
        options["fate"] = lambda pushed: HANGS
    return FakeDevice(virtual_loop(), *capacities, **options)


async def ask(served: ServedModel, values: Array, arrived_ns: int | None = None, **options: Any) -> Answer:
    """One call, as the API makes it. Along every variable axis its rows are as long as they come."""
    lengths = dict.fromkeys(served.pool.lengths, values.shape[1] if values.ndim > 1 else 0)
    with served.lease(ModelCall(len(values), [values], lengths=lengths, **options), arrived_ns) as lease:
        return await awaited(lease)


class Caller:
    """Waits for one call as a request on the fast path does."""

    def __init__(self, served: ServedModel, on_end: Callable[[], object] = lambda: None) -> None:
        self.served = served
        self.on_end = on_end
        self.ends: list[Answer | Exception] = []
        self.slots_used = -1
        self.lease: Lease

    def call(self, value: float, **options: Any) -> Caller:
        self.lease = self.served.lease(ModelCall(1, [rows_of(value)], **options))
        self.lease.submit(self)
        return self

    def done(self) -> bool:
        return bool(self.ends)

    def set_result(self, answer: Answer) -> None:
        self._end(answer)

    def set_exception(self, error: Exception) -> None:
        self._end(error)

    def _end(self, what: Answer | Exception) -> None:
        self.ends.append(what)
        self.slots_used = self.served.pool.used
        self.lease.close()
        self.on_end()


@dataclass(eq=False)
class Rig:
    """An engine, its fake device and the models it serves, in the order given."""

    loop: VirtualLoop
    device: FakeDevice
    engine: Engine
    models: list[ServedModel] = field(default_factory=list)

    @property
    def served(self) -> ServedModel:
        return self.models[0]

    def ask(self, *values: float, **options: Any) -> asyncio.Task[Answer]:
        """A call of one row for each value, as a task that has not begun."""
        return self.loop.create_task(ask(self.served, rows_of(*values), **options))

    def rows_pushed(self) -> list[int]:
        return [pushed.rows for pushed in self.device.pushed]

    def assert_settled(self) -> None:
        """Nothing of any call is left."""
        scheduler = self.engine.scheduler
        assert list(scheduler.calls) == []
        assert list(scheduler.units.values()) == []
        assert scheduler.leftovers == {}
        for served in self.models:
            assert served.pool.used == 0
            assert served.reserved == [0, 0]
            state = scheduler.states.get(served.program)
            assert state is None or not any(state.queue.waiting)  # None: the model has gone
            if served.executor.activations is not None:
                assert not served.executor.activations
        assert [gauges.pending_calls for gauges in self.engine.snapshot().models if gauges.pending_calls] == []


@asynccontextmanager
async def serving(
    *models: Model, device: FakeDevice | None = None, scheduler: Scheduler | None = None, rate: float = 1.0,
    profiles: ProfileCache | None = None, profile_budget_s: float = 0.0, settles: bool = True, **options: Any,
) -> AsyncIterator[Rig]:  # fmt: skip
    """A started engine on the running VirtualLoop; one worker of four rows and one Affine unless told otherwise.

    `settles`: nothing may be left of any call in the end.
    """
    loop = virtual_loop()
    device = device or FakeDevice(loop, 4)
    scheduler = scheduler or Scheduler(device.spec)
    clock = VirtualClock(loop, rate)
    profiling = Profiling(device, profiles, profile_budget_s, clock)
    async with Engine(profiling, scheduler, **options) as engine:
        rig = Rig(loop, device, engine)
        for model in models or (make_model(),):
            rig.models.append(await engine.start(model))
        yield rig
        if settles:
            rig.assert_settled()
