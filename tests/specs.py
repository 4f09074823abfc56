"""Specifications of tensors, as short as what they say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.contract import Batching, ModelInfo, TensorSpec


def spec(name: str, datatype: str, *shape: int | str | tuple[str, int], bound: int = 8, **more: Any) -> TensorSpec:
    """An axis given by name is variable, up to `bound`, or as (name, its bound). `more`: other fields."""
    parts = [(axis, bound) if isinstance(axis, str) else axis for axis in shape]
    axes = tuple("" if isinstance(axis, int) else axis[0] for axis in parts)
    bounds = tuple(axis if isinstance(axis, int) else axis[1] for axis in parts)
    lengths = tuple(axis if isinstance(axis, int) else -1 for axis in parts)
    return TensorSpec(name, datatype, lengths, axes, bounds, **more)


def info_of(inputs: Iterable[TensorSpec] = (), outputs: Iterable[TensorSpec] = (), **batching: Any) -> ModelInfo:
    return ModelInfo("m", "1", "pytorch", tuple(inputs), tuple(outputs), Batching(**batching))
