"""Ebird's Figure 11: device memory used by one worker and by six."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.engine.devices.streams.runtime import perform
from app.models.placement import Placement, place
from app.scheduler.policies import default_workers

from . import model_folders
from .driven_device import DrivenDevice, Options
from .platforms import Platform


def cases(largest: int) -> dict[str, Options]:
    """The cases by name. The paper compares its six workers with one worker of the largest batch."""
    return {
        "one": Options((largest,)),
        "six, Ebird's": Options(default_workers("ebird", largest)),
        "six of the largest": Options((largest,) * 6),
        "six, Ebird's, no graphs": Options(default_workers("ebird", largest), graphs=False),
    }


def weights_of(model: nn.Module) -> int:
    """Bytes of parameters and buffers, each storage counted once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def figure11(platform: Platform, folder: Path, case: str, largest: int) -> dict[str, Any]:
    """One case, in a process of its own. Bytes of the device:

    weights     parameters and buffers of the model as it serves
    tensors     everything allocated outside of graph pools and workspaces: weights, slots, indices
    pools       reserved for graphs, which keep their activations
    workspaces  of the matrix library, one for each stream that computed a matrix product
    peak        the most that the caching allocator reserved: all of the above and fragments
    driver      the driver's count for this process since before the model was opened, read after the caching allocator
                has returned its free memory, which a server does not do

    Before reading, all sizes that a server would capture are captured and all workers have run at once.
    """
    options = cases(largest)[case]
    model_folders.loaded(folder)
    before, base = platform.used(), platform.allocated()
    model = model_folders.read(folder, largest)
    assert isinstance(model.call, nn.Module)
    with DrivenDevice(platform, model, options) as driven:
        module = driven.executor.model.call
        assert isinstance(module, nn.Module)
        sizes = [size for size in driven.executor.sizes(largest) if options.graphs or size & (size - 1) == 0]
        driven.warm(sizes)
        driven.burst(min(options.workers))
        driven.burst(min(options.workers))
        gc.collect()
        driver, peak = platform.used() - before, platform.peak()
        with_workspaces = platform.allocated()
        platform.drop_workspaces()
        allocated = platform.allocated()
        in_pools, reserved = platform.pools()
        return {
            "model": folder.name, "case": case, "workers": list(options.workers), "captured": driven.captured,
            "graphs": sum(len(memory.graphs.graphs) for memory in driven.executor.memories if memory.graphs),
            "weights": weights_of(module), "tensors": allocated - in_pools - base, "pools": reserved,
            "workspaces": with_workspaces - allocated, "peak": peak, "driver": driver,
        }  # fmt: skip


def copies(platform: Platform, folder: Path, count: int = 6) -> dict[str, Any]:
    """Memory of `count` copies of the weights, as the paper's workers have them; measured, not multiplied."""
    model_folders.loaded(folder)
    base = platform.allocated()
    held: list[nn.Module] = []
    placed = model_folders.read(folder, 1)

    def move() -> None:
        first = place(placed, Placement(device=platform.runtime.device)).call
        assert isinstance(first, nn.Module)
        held.append(first)
        held.extend(copy.deepcopy(first) for _ in range(count - 1))

    with torch.inference_mode():
        perform(platform.runtime, platform.gate, move)
    return {
        "model": folder.name,
        "copies": count,
        "allocated": platform.allocated() - base,
        "weights": weights_of(held[0]),
    }
