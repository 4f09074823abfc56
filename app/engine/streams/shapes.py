"""Which batches of a model get CUDA graphs: their sizes, and their lengths if rows have a variable one.

A graph is one shape. Batches between two shapes are padded to the next, in rows and in length. That is right for a
model whose answers do not depend on padding: the row check at load compares rows in batches of their own length and of
longer ones, and a model that is served whatever it finds has no graphs of variable length. `length_buckets` are a
promise besides: no row is padded beyond the end of its bucket, by graphs neither, so a model that lists every length
is never padded.

Every graph takes memory and time to capture, on each worker, so there are at most `_MOST` for one worker and model: 64
are some seconds of loading, if capturing one takes 30 ms. A model of fixed shapes has far fewer. One with a variable
axis has fewer sizes and, for each, the ends of its buckets, the shortest first, for there a batch takes longest to
launch compared with what it computes. Without buckets it has the bound and what is left of it when it is halved again
and again, so that rows no shorter than the least of these lengths are padded to less than twice their own.
"""

from __future__ import annotations

from typing import NamedTuple

from app.contract import Model

_MOST = 64
_EACH = 16  # of fixed shapes every size up to here has a graph of its own, then powers of two: 21 for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # a batch of shorter rows takes no less time, on a GPU


class Shape(NamedTuple):
    """Rows of a batch, and the length that they are padded to; 0 if they have none."""

    size: int
    length: int = 0


def variable_axis(model: Model) -> tuple[str, int] | None:
    """Name and bound of the variable axis that batches may be padded along.

    None if there is none, or several, if it is without bound, or if the row check does not refuse a model that depends
    on padding.
    """
    inputs = model.info.client_inputs
    bounds = {axis: bound for spec in inputs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}
    if len(bounds) != 1 or not all(spec.bounded for spec in inputs) or model.row_check != "refuse":
        return None
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
