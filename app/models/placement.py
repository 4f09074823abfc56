"""Where a model computes and in what precision: its module moved, cast and compiled, once, for all workers.

What a model declares stays as it is: inputs arrive and outputs leave in their own datatypes, whatever is computed with
in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from app.contract import Model, TensorSpec
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, cast, normalise
from app.models.compiled import Compiled
from app.models.recurrent.cells import CellModel

log = logging.getLogger("starling.models")

_INDEX_BYTES = 4  # smaller integers are taken for pixels and flags

CPU = torch.device("cpu")
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Placement:
    """`precision`: fp32 leaves a model as it was loaded, bf16 and fp16 cast its floating-point weights and inputs."""

    device: torch.device = CPU
    precision: str = "fp32"
    compile: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything differs from a model as it was loaded."""
        return self.device.type != "cpu" or self.precision != "fp32" or self.compile


AS_LOADED = Placement()


def movable(model: Model) -> bool:
    """Whether the model may compute elsewhere than on the CPU.

    What is not an nn.Module cannot be moved, and text lives in Python objects: such a model works row by row.
    """
    tensors = (*model.info.inputs, *model.info.outputs)
    by_cells = isinstance(model.call, CellModel) and not model.call.movable
    return isinstance(model.call, nn.Module) and not by_cells and not any(spec.datatype == "BYTES" for spec in tensors)


def warn_of_indices(model: Model) -> None:
    """An index beyond a table's end crashes the GPU, which does not check it."""
    for spec in model.info.client_inputs:
        if (
            spec.dtype.kind in "iu"
            and spec.dtype.itemsize >= _INDEX_BYTES
            and (spec.minimum is None or spec.maximum is None)
        ):
            log.warning(
                "model %s: input %r has no minimum and maximum: an index out of range would crash the GPU",
                model.info.name, spec.name,
            )  # fmt: skip


def place(model: Model, placement: Placement) -> Model:
    """The model with its module on the device, in the precision, compiled. Changes the module itself.

    A model that is not `movable` is returned as it is. Raises ConfigError when it cannot be moved;
    what torch.compile makes of it shows at its first batch.
    """
    module = model.call
    if not placement.changes or not movable(model) or not isinstance(module, nn.Module):
        return model
    if placement.compile and isinstance(module, torch.jit.ScriptModule):
        log.warning("model %s: TorchScript is not compiled, torch.compile refuses it", model.info.name)
        placement = replace(placement, compile=False)
    dtype = PRECISIONS[placement.precision]
    try:
        for part in (module, *(one for one in (*model.stages, model.context) if isinstance(one, nn.Module))):
            part.to(device=placement.device, dtype=dtype)
            _move_rest(part, placement.device, dtype)
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
        for number, stage in enumerate(model.stages)
    )
    # A few operators of masks and positions, which no compiler makes much faster.
    context = model.context and _wrapped(model.context, replace(placement, compile=False), None)
    return replace(model, call=_wrapped(module, placement, model.info.outputs), stages=stages, context=context)


def _wrapped(
    call: Callable[..., Any], placement: Placement, outputs: tuple[TensorSpec, ...] | None
) -> Callable[..., Any]:
    """A model, or one stage of it, compiled and cast. `outputs`: None for a stage whose results go to the next one."""
    if placement.compile:
        call = Compiled(call)
    dtype = PRECISIONS[placement.precision]
    return call if dtype is None else Cast(call, dtype, outputs)


class Cast(nn.Module):
    """A module of another precision than its inputs and outputs are declared in.

    `outputs`: None for a stage whose results go to the next one as they are.
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


def _move_rest(module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """What `Module.to` leaves behind: an exported model holds constants as plain attributes, and its graph names the
    device it was exported on.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                setattr(part, name, value.to(device=device, dtype=dtype if value.is_floating_point() else None))
        for node in part.graph.nodes:
            if node.kwargs.get("device") is not None:
                node.kwargs = {**node.kwargs, "device": device}
            if node.target is torch.ops.aten.to.device:
                node.args = (node.args[0], device, *node.args[2:])
        part.recompile()
