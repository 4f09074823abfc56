"""A model in stages: callables that run one after another, where a batch may change in between.

The first stage gets the inputs as declared, each next one what the last returned, a tuple unpacked. All that a stage
passes on has the batch's rows first. Where its second axis is as long as the batch's variable axis, the server cuts it
and pads it with 0 when rows of other lengths join.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from app.errors import ConfigError


class Staged(nn.Module):
    """What a factory returns for a model in stages. Called, it runs them all.

    `again[i]` are positions of inputs that stage i gets once more, behind what the last stage returned; the first stage
    has them all. A mask belongs there: padded anew for each batch, it has its own pad value, where an activation has 0.
    `context` makes a tuple of tensors of the inputs, whose positions follow those of the inputs; the first stage may
    take them too. It is called once for a batch, and anew when the batch has changed.
    """

    def __init__(
        self,
        stages: Sequence[Callable[..., Any]],
        again: Sequence[Sequence[int]] = (),
        context: Callable[..., Sequence[torch.Tensor]] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(stages, Sequence) or not stages:
            raise TypeError(f"Staged: expected a list of callables, got {stages!r:.80}")
        for number, stage in enumerate(stages):
            if not callable(stage):
                raise TypeError(f"Staged: expected a callable as stage {number}, got {type(stage).__name__}")
            # A module's weights are the model's, and so are those behind a module's method.
            owner = stage if isinstance(stage, nn.Module) else getattr(stage, "__self__", None)
            if isinstance(owner, nn.Module):
                self.add_module(str(number), owner)
        self.stages = tuple(stages)
        self.again = tuple(tuple(places) for places in again) or ((),) * len(stages)
        self.context = context
        if len(self.again) != len(self.stages) or (self.again[0] and context is None):
            raise TypeError("Staged: expected an entry of `again` for each stage, and none for the first")

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """What the last stage returns. Keywords are the first stage's."""
        given = (*inputs, *self.context(*inputs)) if self.context is not None else inputs
        result = self.stages[0](*inputs, *(given[place] for place in self.again[0]), **keywords)
        for number, (stage, again) in enumerate(zip(self.stages[1:], self.again[1:], strict=True)):
            passed = passed_on(result, number, len(inputs[0]))
            result = stage(*passed, *(given[place] for place in again))
        return result


def passed_on(result: Any, stage: int, size: int) -> tuple[torch.Tensor, ...]:
    """What a stage that is not the last returned for a batch of `size` rows, as the next one's arguments.

    Raises ConfigError unless it is a tensor or a tuple of tensors with the rows first.
    """
    if isinstance(result, torch.Tensor) and result.ndim and len(result) == size:  # most stages
        return (result,)
    values = (result,) if isinstance(result, torch.Tensor) else result
    if not isinstance(values, (tuple, list)) or not values:
        raise ConfigError(f"stage {stage}: expected a tensor or a tuple of tensors, got {type(result).__name__}")
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise ConfigError(f"stage {stage}: value {place}: expected a tensor, got {type(value).__name__}")
        if value.shape[:1] != (size,):
            raise ConfigError(
                f"stage {stage}: value {place}: expected {size} rows first, got shape {list(value.shape)}"
            )
    return tuple(values)


class SecondAxes:
    """Which tensors that stages pass on are as long as their batch along their second axis, learnt from batches.

    A tensor has such an axis if it was as long in every batch so far: a width that happens to equal a length differs
    in a batch of another length.
    """

    def __init__(self) -> None:
        self._axes: dict[tuple[int, int], tuple[str, ...]] = {}  # by (stage, number of the tensor)

    def learn(self, stage: int, tensors: Sequence[torch.Tensor], longest: Mapping[str, int]) -> None:
        """`stage` has passed these on, for a batch with these lengths along the inputs' variable axes."""
        for number, tensor in enumerate(tensors):
            axes = self._axes.get((stage, number), tuple(longest))
            if axes:
                own = tensor.shape[1] if tensor.ndim > 1 else -1
                self._axes[stage, number] = tuple(axis for axis in axes if longest[axis] == own)

    def of(self, stage: int, number: int) -> str:
        """The variable axis that this tensor's second axis is as long as, or ""."""
        axes = self._axes.get((stage, number), ())
        return axes[0] if axes else ""


def resized(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Rows as long as `length` along their second axis: cut, or padded with 0."""
    had = rows.shape[1]
    if had == length:
        return rows
    if had > length:
        return rows[:, :length]
    longer = rows.new_zeros((rows.shape[0], length, *rows.shape[2:]))
    longer[:, :had] = rows
    return longer
