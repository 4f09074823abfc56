"""The base class of executors: a model placed on a device. Also what all devices do with rows and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch

from app.contract import Array, Model, TensorSpec
from app.engine.activations import Activations
from app.engine.pool import Pool
from app.engine.tensors import pad_beyond, select_rows, stack
from app.models.base import TORCH_DTYPES, check_shape, normalise
from app.models.process_state import SeedWatch, Setting
from app.models.server_inputs import with_server_inputs


class Steps(NamedTuple):
    """How many steps a row of a recurrent model makes: at most `most` (0: unbounded), and as many as its length, unless
    the cell itself ends it (`own`)."""

    most: int
    own: bool


class Executor:
    """A model placed on a device.

    `activations`: the tensors of rows between two stages; None if the device runs the model whole. `steps`: of a
    recurrent model that the device runs step by step, known after its first trial. `keeps_memory`: the first batch of
    each size allocates memory that is kept, so every size should run before serving. `one_unit`: it can run only one
    unit at a time. `unruly`: settings of the process that its batches change, see `process_state`.
    """

    keeps_memory = False
    one_unit = False
    activations: Activations | None = None
    steps: Steps | None = None
    unruly: tuple[Setting, ...] = ()

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool
        self.seeds = SeedWatch()

    def keywords(self, rows: Sequence[int]) -> dict[str, Any]:
        """The keyword arguments of a model that takes parameters: copies, as rows of a call have the same object."""
        if not self.model.takes_parameters:
            return {}
        return {"parameters": [deepcopy(self.pool.parameters[slot]) or {} for slot in rows]}

    def stacked(self, position: int, rows: Sequence[int]) -> Any:
        """The rows of an input that has no slab: text as an array of bytes, others as a tensor on the host."""
        spec, values = self.pool.specs[position], self.pool.objects[position]
        assert values is not None  # an input has a slab or objects, see Pool
        batch = stack([values[slot] for slot in rows], spec)
        return batch if spec.datatype == "BYTES" else torch.from_numpy(batch).view(TORCH_DTYPES[spec.datatype])

    def complete(self, sent: list[Any], lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]) -> list[Any]:
        """All inputs of a batch: those that clients send, and the masks and lengths made from the rows' lengths."""
        inputs = self.model.info.inputs
        return sent if len(sent) == len(inputs) else with_server_inputs(inputs, sent, lengths, longest)

    def returned(self, result: Any, size: int, longest: Mapping[str, int]) -> list[Any]:
        """The model's result for a batch of `size` rows, as a list of outputs. ConfigError if it is not as declared."""
        specs = self.model.info.returned
        values = normalise(result, specs)
        for spec, value in zip(specs, values, strict=True):
            check_shape(spec, value, size, longest)
        return values

    def answers(self, returned: list[Array]) -> tuple[list[Array], Array | None]:
        """Split a result into outputs and the rows' lengths along own axes, which models return last."""
        return (returned[:-1], returned[-1]) if self.model.info.own_axes else (returned, None)


def gather_rows(
    slab: torch.Tensor,
    spec: TensorSpec,
    index: torch.Tensor,
    lengths: Mapping[str, torch.Tensor],
    longest: Mapping[str, int],
) -> torch.Tensor:
    """The rows in the slots `index`, padded to the `longest` of them. All tensors are on the slab's device.

    Beyond a row's own length its slot still holds an earlier caller's data, which padding overwrites. `lengths`: of the
    rows, along the axes on which some are shorter.
    """
    for dim, axis in enumerate(spec.axes, 1):
        if axis:
            slab = slab.narrow(dim, 0, longest[axis])
    batch = select_rows(slab, index)
    for dim, axis in enumerate(spec.axes, 1):
        if axis in lengths:
            pad_beyond(batch, dim, lengths[axis], spec.pad_value)
    return batch
