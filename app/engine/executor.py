"""A model placed on a device, as the engine sees it, and what every device does with its rows and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from app.contract import Array, Model, TensorSpec
from app.engine.activations import Activations
from app.engine.pool import Pool
from app.engine.tensors import pad_beyond, select_rows, stack
from app.models.base import TORCH_DTYPES, check_shape, normalise
from app.models.server_inputs import with_server_inputs


class Steps(NamedTuple):
    """How many steps a row of a recurrent model makes: at most `most`, 0 where nothing bounds them; as many as it is
    long, unless `own` says that it is the cell which ends it."""

    most: int
    own: bool


class Executor:
    """A model placed on a device.

    `model` has stages where the device runs them one by one, and `activations` is what rows have between two of them,
    None for a model that the device runs whole. `steps`: of a recurrent model that the device runs step by step, known
    once it has been tried. `keeps_memory`: a batch allocates memory at its first run and keeps it, so every size should
    run before serving. `one_unit`: it can run one unit at a time.
    """

    keeps_memory = False
    one_unit = False
    activations: Activations | None = None
    steps: Steps | None = None

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool

    def keywords(self, rows: Sequence[int]) -> dict[str, Any]:
        """What a model that takes parameters is called with beside its inputs."""
        if not self.model.takes_parameters:
            return {}
        return {"parameters": [self.pool.parameters[slot] or {} for slot in rows]}

    def stacked(self, position: int, rows: Sequence[int]) -> Any:
        """The rows of an input that has no slab: text as an array of bytes, others as a tensor on the host."""
        spec, values = self.pool.specs[position], self.pool.objects[position]
        assert values is not None  # an input has a slab or objects, see Pool
        batch = stack([values[slot] for slot in rows], spec)
        return batch if spec.datatype == "BYTES" else torch.from_numpy(batch).view(TORCH_DTYPES[spec.datatype])

    def complete(self, sent: list[Any], lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]) -> list[Any]:
        """All inputs of a batch: those that clients send, and masks and lengths that are made of the rows' lengths."""
        inputs = self.model.info.inputs
        return sent if len(sent) == len(inputs) else with_server_inputs(inputs, sent, lengths, longest)

    def returned(self, result: Any, size: int, longest: Mapping[str, int]) -> list[Any]:
        """What the model returned for a batch of `size` rows, output by output. ConfigError where it is not what was
        declared."""
        specs = self.model.info.returned
        values = normalise(result, specs)
        for spec, value in zip(specs, values, strict=True):
            check_shape(spec, value, size, longest)
        return values

    def answers(self, returned: list[Array]) -> tuple[list[Array], Array | None]:
        """The outputs of rows, and how long each is along axes of their own, which models return behind them."""
        return (returned[:-1], returned[-1]) if self.model.info.own_axes else (returned, None)


def gather_rows(
    slab: torch.Tensor,
    spec: TensorSpec,
    index: torch.Tensor,
    lengths: Mapping[str, torch.Tensor],
    longest: Mapping[str, int],
) -> torch.Tensor:
    """The rows listed, as long as the `longest` of them. All tensors are on the slab's device.

    Beyond a row's own length its slot still holds an earlier caller's data, which padding overwrites. `lengths`: of the
    rows, along the axes where some are shorter.
    """
    for dim, axis in enumerate(spec.axes, 1):
        if axis:
            slab = slab.narrow(dim, 0, longest[axis])
    batch = select_rows(slab, index)
    for dim, axis in enumerate(spec.axes, 1):
        if axis in lengths:
            pad_beyond(batch, dim, lengths[axis], spec.pad_value)
    return batch
