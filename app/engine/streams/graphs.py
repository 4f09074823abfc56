"""CUDA graphs: which batches of a model get one (docs/theory/streams.md, Graphs).

A graph has one shape. Other batches are padded to the next larger shape, in rows and in length, but never beyond the
end of their length bucket.
"""

from __future__ import annotations

from typing import NamedTuple

from app.contract import Model, axis_bounds

_MOST = 64
_EACH = 16  # for fixed shapes each size up to this has a graph, then powers of two: 21 graphs for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # on a GPU batches of shorter rows are not faster


class Shape(NamedTuple):
    """The padded length of the rows of a batch, 0 if they have none, and their number."""

    length: int
    size: int


def variable_axis(model: Model) -> tuple[str, int]:
    """Name and bound of the one variable axis along which batches may be padded.

    "" and 0 if there is none or several, if it is unbounded, or if the row check does not refuse models that depend on
    padding.
    """
    inputs = model.info.client_inputs
    bounds = axis_bounds(inputs)
    if len(bounds) != 1 or not all(spec.bounded for spec in inputs) or model.checks.row_check != "refuse":
        return "", 0
    return next(iter(bounds.items()))


def sizes_of(largest: int, fixed: bool) -> list[int]:
    """Batch sizes that get graphs on a worker of so many rows."""
    if fixed:
        powers = [1 << n for n in range(_EACH.bit_length(), largest.bit_length()) if 1 << n < largest]
        return sorted({*range(1, min(largest, _EACH) + 1), *powers, largest})
    steps = {size for n in range(largest.bit_length()) for size in (1 << n, 3 << n)}  # 1, 2, 3, 4, 6, 8, 12, 16, ...
    return sorted({size for size in steps if size < largest} | {largest})


def lengths_of(bound: int, buckets: tuple[int, ...], sizes: int) -> list[int]:
    """Lengths that batches are padded to, for so many sizes, ascending."""
    most = max(1, _MOST // sizes)
    if buckets:
        return sorted({bucket for bucket in buckets if bucket < bound} | {bound})[:most]
    halves = [-(-bound // (1 << n)) for n in range(min(most, _LENGTHS))]
    return sorted({length for length in halves if length >= _SHORTEST} | {bound})
