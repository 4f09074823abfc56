"""A model in stages: callables that run one after another; the batch may change in between.

The first stage takes the inputs as declared, each next one the result of the stage before, a tuple unpacked. All
tensors between stages have the batch's rows first. If their second axis is as long as the batch's variable axis, the
server cuts it, or pads it with 0, when rows of other lengths join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from app.contract import Stages
from app.errors import ConfigError


class Staged(nn.Module):
    """The return value of a factory for a model in stages. Calling it runs all stages.

    `again[i]`: positions of inputs that stage i takes again, behind the results of the stage before; the first stage
    has all inputs. A mask belongs there: it is padded for each batch with its own pad value, an activation with 0.
    `context` makes a tuple of tensors from the inputs; their positions follow those of the inputs, and the first stage
    may take them too. It may be called several times for a batch.
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
            # the weights of a module, or of the module whose method the stage is, belong to the model
            owner = stage if isinstance(stage, nn.Module) else getattr(stage, "__self__", None)
            if isinstance(owner, nn.Module):
                self.add_module(str(number), owner)
        places = tuple(map(tuple, again)) or ((),) * len(stages)
        if len(places) != len(stages) or (places[0] and context is None):
            raise TypeError("Staged: expected an entry of `again` for each stage, and none for the first")
        if isinstance(context, nn.Module):
            self.add_module("context", context)
        self.parts = Stages(tuple(stages), places, context)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The result of the last stage. Keywords go to the first stage."""
        return [*results_of(self.parts, inputs, **keywords)][-1]


def results_of(
    parts: Stages, inputs: Sequence[Any], first: int = 0, passed: Sequence[Any] = (), **keywords: Any
) -> Iterator[Any]:
    """The result of each stage from `first` on, which takes what the stage before has `passed` on; the first takes the
    inputs, and the keywords.
    """
    given, passed = parts.given(inputs), passed if first else inputs
    for stage in range(first, len(parts)):
        arguments = parts.arguments(stage, passed, given)
        if len(parts) > 1:  # on copies, as on a device: a stage may write into what it is given
            arguments = [value.clone() for value in arguments]
        result = parts.calls[stage](*arguments, **({} if stage else keywords))
        if stage + 1 < len(parts):
            result = passed = passed_on(result, stage, len(inputs[0]))
        yield result


def passed_on(result: Any, stage: int, size: int) -> tuple[torch.Tensor, ...]:
    """The result of a stage before the last, for a batch of `size` rows, as the next stage's arguments.

    Raises ConfigError unless it is a tensor or a tuple of tensors with the rows first.
    """
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
    """Which tensors between stages have the batch's variable axis as their second axis, learnt from batches.

    A tensor has it if both lengths were equal in every batch so far: a width that happens to equal a length differs in
    a batch of another length.
    """

    def __init__(self) -> None:
        self._axes: dict[tuple[int, int], tuple[str, ...]] = {}  # by (stage, number of the tensor)

    def learn(self, stage: int, tensors: Sequence[torch.Tensor], longest: Mapping[str, int]) -> None:
        """Note the results of `stage` for a batch with these lengths along the inputs' variable axes."""
        for number, tensor in enumerate(tensors):
            axes = self._axes.get((stage, number), tuple(longest))
            if axes:
                own = tensor.shape[1] if tensor.ndim > 1 else -1
                self._axes[stage, number] = tuple(axis for axis in axes if longest[axis] == own)

    def of(self, stage: int, number: int) -> str:
        """The variable axis that is this tensor's second axis, or ""."""
        axes = self._axes.get((stage, number), ())
        return axes[0] if axes else ""


def resized(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Rows as long as `length` along their second axis: cut, or padded with 0."""
    more = length - rows.shape[1]
    return nn.functional.pad(rows, (*[0] * (2 * rows.ndim - 3), more)) if more > 0 else rows[:, :length]
