"""Outputs of rows that ran for different numbers of steps: one by one, and together as one call's answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.contract import Array, ModelInfo


def apart(info: ModelInfo, outputs: Sequence[Array], lengths: Array) -> list[list[Array]]:
    """Of each row of a batch its outputs [1, ...], as views; those with an axis of their own as long as the row ran.

    `lengths` [rows]: how long that is.
    """
    own = [info.has_own_length(spec) for spec in info.outputs]
    return [
        [
            values[row : row + 1, :length] if cut else values[row : row + 1]
            for values, cut in zip(outputs, own, strict=True)
        ]
        for row, length in enumerate(lengths.tolist())
    ]


def together(info: ModelInfo, pieces: Sequence[Sequence[Array]]) -> tuple[list[Array], list[int]]:
    """The outputs of all pieces, each some rows of one length, and the length of every row.

    What is as long as each row ran is as long as the longest here, with zeros behind the others.
    """
    outputs: list[Array] = []
    lengths: list[int] = []
    for spec, parts in zip(info.outputs, zip(*pieces, strict=True), strict=True):
        if not info.has_own_length(spec):
            outputs.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
            continue
        lengths = [part.shape[1] for part in parts for _ in part]
        outputs.append(joined(parts))
    return outputs, lengths


def joined(parts: Sequence[Array]) -> Array:
    """Arrays [rows, ...] as one, each axis as long as the longest of them, with zeros behind the others."""
    first = parts[0]
    if all(part.shape[1:] == first.shape[1:] for part in parts):
        return first if len(parts) == 1 else np.concatenate(parts)
    longest = map(max, zip(*(part.shape[1:] for part in parts), strict=True))
    rows = np.zeros((sum(map(len, parts)), *longest), first.dtype)
    begin = 0
    for part in parts:
        rows[(slice(begin, begin + len(part)), *map(slice, part.shape[1:]))] = part
        begin += len(part)
    return rows
