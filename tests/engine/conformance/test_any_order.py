"""Invariant, on every device and of every kind of model: whatever rows a unit is cut from and whoever fails or leaves
beside it, a row gets the outputs of its own values; each unit is reported once; nothing is kept of rows that ended.

On streams, in whatever order these and the threads take their turns: a unit reads rows that have arrived, a result
leaves after its out-event and not before, and a slot is reused by nobody too early.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deferred import DeferredRuntime
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime

from app.engine.device import DeviceOptions

from .models import FAILING, MODELS, WRITERS
from .stepped import SteppedCpu, SteppedStreams
from .world import World

SEEDS = st.integers(0, 2**32 - 1)
EAGER = DeviceOptions(graphs=False)

DEVICES: dict[str, Callable[[FakeRuntime], SteppedStreams | SteppedCpu]] = {
    "cpu": lambda runtime: SteppedCpu(runtime, (4, 2)),
    "eager": lambda runtime: SteppedStreams(runtime, (4, 2), EAGER),
    "graphs": lambda runtime: SteppedStreams(runtime, (4, 3, 1)),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", DEVICES)
@given(seed=SEEDS)
@settings(max_examples=5)
def test_each_row_gets_its_own_outputs(device: str, model: str, seed: int) -> None:
    world = World(DEVICES[device](FakeRuntime(seed)), MODELS[model]()).tried()
    for memory in getattr(world.executor, "memories", []):
        assert bool(memory.graphs) == (device == "graphs" and "without bound" not in model)
    assert world.lives(250).answered


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ("whole", "cell that ends rows by itself")])
@pytest.mark.parametrize("device", ["eager", "graphs"])
@given(seed=SEEDS)
@settings(max_examples=2)
def test_so_it_does_when_operators_run_after_python(device: str, model: str, seed: int) -> None:
    """And memory is used again as soon as nobody holds it. The models left out share memory between two workers."""
    world = World(DEVICES[device](DeferredRuntime(seed)), MODELS[model]()).tried()
    assert world.lives(150).answered


@pytest.mark.parametrize("model", WRITERS)
@given(seed=SEEDS)
@settings(max_examples=3)
def test_each_text_is_what_is_written_alone(model: str, seed: int) -> None:
    """On a CPU, which also runs decoders beside a GPU."""
    assert World(DEVICES["cpu"](FakeRuntime(seed)), WRITERS[model]()).tried().lives(100).answered


@pytest.mark.parametrize("model", FAILING)
@pytest.mark.parametrize("device", DEVICES)
@given(seed=SEEDS)
@settings(max_examples=5)
def test_a_row_that_fails_at_any_step_takes_nobody_with_it(device: str, model: str, seed: int) -> None:
    """Its unit ends with the step before, and what was launched behind that one does nothing."""
    world = World(DEVICES[device](FakeRuntime(seed)), FAILING[model]()).tried().lives(250)
    bad = set(world.trips.bad)
    assert set(world.refused) <= bad
    assert not set(world.answered) & bad


@pytest.mark.parametrize("model", ["whole", "stages", "cell that ends rows by itself"])
@given(seed=SEEDS, breaks_at=st.integers(1, 150))
@settings(max_examples=10)
def test_when_the_device_fails_each_unit_is_reported_once(model: str, seed: int, breaks_at: int) -> None:
    runtime = FakeRuntime(seed)
    world = World(SteppedStreams(runtime, (4, 2)), MODELS[model]()).tried()
    runtime.breaks_at = runtime.done + breaks_at
    world.lives(200)
    assert not world.lost or "AcceleratorError" in (world.device.dead() or "")
