"""Moves, casts and compiles a model's module, once for all workers.

The declared datatypes do not change: inputs and outputs keep theirs, whatever precision the model computes in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import fx, nn

from app.contract import Model, TensorSpec
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, cast, networks_of, normalise
from app.models.compiled import Compiled
from app.models.recurrent.cells import CellModel

log = logging.getLogger("starling.models")

_INDEX_BYTES = 4  # smaller integers are assumed to be pixels and flags, not indices

CPU = torch.device("cpu")
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Placement:
    """`precision`: fp32 changes nothing; bf16 and fp16 cast floating-point weights and inputs, no complex ones."""

    device: torch.device = CPU
    precision: str = "fp32"
    compile: bool = False


AS_LOADED = Placement()


def movable(model: Model) -> bool:
    """Whether the model can run on another device than the CPU: an nn.Module without text, which is Python objects."""
    tensors = (*model.info.inputs, *model.info.outputs)
    owner = model.call.cell if isinstance(model.call, CellModel) else model.call
    return isinstance(owner, nn.Module) and not any(spec.datatype == "BYTES" for spec in tensors)


def warn_of_indices(model: Model) -> None:
    """Warn of integer inputs without bounds: an index out of range crashes a GPU kernel."""
    for spec in model.info.client_inputs:
        may_be_index = spec.dtype.kind in "iu" and spec.dtype.itemsize >= _INDEX_BYTES
        if may_be_index and (spec.minimum is None or spec.maximum is None):
            log.warning(
                "model %s: input %r has no minimum and maximum: an index out of range would crash the GPU",
                model.info.name, spec.name,
            )  # fmt: skip


def place(model: Model, placement: Placement) -> Model:
    """The model with its module moved, cast and compiled. Changes the module itself.

    A model that is not `movable` is returned unchanged. Raises ConfigError if it cannot be moved; errors of
    torch.compile appear at its first batch.
    """
    module = model.call
    if placement == AS_LOADED or not movable(model) or not isinstance(module, nn.Module):
        return model
    if placement.compile and isinstance(module, torch.jit.ScriptModule):
        log.warning("model %s: TorchScript is not compiled, torch.compile refuses it", model.info.name)
        placement = replace(placement, compile=False)
    dtype = PRECISIONS[placement.precision]
    try:
        for network in networks_of(model):
            _move(network, placement.device, dtype)
    except Exception as error:  # out of memory, or a module that refuses
        what = f"{placement.device} in {placement.precision}"
        raise ConfigError(f"cannot be moved to {what}: {error}") from error
    if isinstance(module, CellModel):
        module.dtype = dtype
        if placement.compile:
            module.compile_step()
        return model
    last = len(model.stages) - 1
    stages = tuple(
        _wrapped(stage, placement, model.info.outputs if number == last else None)
        for number, stage in enumerate(model.stages.calls)
    )
    # not compiled: it is a few operators of masks and positions
    context = model.stages.context and _wrapped(model.stages.context, replace(placement, compile=False), None)
    parts = replace(model.stages, calls=stages, context=context)
    return replace(model, call=_wrapped(module, placement, model.info.outputs), stages=parts)


def _wrapped(
    call: Callable[..., Any], placement: Placement, outputs: tuple[TensorSpec, ...] | None
) -> Callable[..., Any]:
    """Compile and cast a model, or one of its stages. `outputs`: None for a stage before the last."""
    if placement.compile:
        call = Compiled(call)
    dtype = PRECISIONS[placement.precision]
    return call if dtype is None else Cast(call, dtype, outputs)


class Cast(nn.Module):
    """A module that computes in another precision than its inputs and outputs are declared in.

    `outputs`: None for a stage before the last, whose results are not cast.
    """

    def __init__(self, module: Callable[..., Any], dtype: torch.dtype, outputs: tuple[TensorSpec, ...] | None) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype
        self.outputs = outputs

    def forward(self, *inputs: torch.Tensor, **keywords: Any) -> Any:
        result = self.module(*(cast(value, self.dtype) for value in inputs), **keywords)
        if self.outputs is None:
            return result
        values = zip(self.outputs, normalise(result, self.outputs), strict=True)
        return tuple(cast(value, TORCH_DTYPES[spec.datatype]) for spec, value in values)


def _move(module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Move a module with what `Module.to` leaves: constants that an exported model holds as plain attributes, and the
    device that its graph names. Complex weights, as rotary positions, stay complex.
    """

    def moved(value: torch.Tensor) -> torch.Tensor:
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    turns = any(value.is_complex() for value in chain(module.parameters(), module.buffers()))
    module.to(device=device, dtype=None if turns else dtype)  # one of its own may move more
    module._apply(moved)  # type: ignore[no-untyped-call]
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, moved(value))
        for node in part.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.kwargs = {**node.kwargs, "device": device}
            if node.target is torch.ops.aten.to.device:
                node.args = (node.args[0], device, *node.args[2:])
        part.recompile()
