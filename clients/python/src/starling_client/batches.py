"""One inference: its inputs checked, cut where the server takes fewer rows, sent, and joined again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from starling_client.core import Core, Flow, Together
from starling_client.errors import BadAnswer, BadRequest, StarlingError, TooLarge, VersionChanged
from starling_client.tensors import DTYPES, to_array
from starling_client.types import Array, Call, Metadata, Result, Retry, Tensor
from starling_client.wire import Part, decode, encode

Inputs = Mapping[str, npt.ArrayLike] | npt.ArrayLike
_OF_A_QUEUE = 4  # parts that a queue holds: so a few wait there together, and other clients' rows find room, too


@dataclass(frozen=True, slots=True)
class _Bounds:
    """`limit`: the most rows of one request; `part`: those of a part, where it has more. None: no bound is known."""

    limit: int | None
    part: int | None

    def parts(self, rows: int) -> int:
        """How many requests so many rows need."""
        if self.limit is None or self.part is None or rows <= self.limit:
            return 1
        return -(-rows // self.part)


def _cut(rows: int, parts: int) -> list[tuple[int, int]]:
    """First row and the one behind the last of each part, as equal as may be."""
    return list(pairwise(rows * index // parts for index in range(parts + 1)))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A call whose inputs have been checked. `rows` is None for a model whose tensors do not lead with rows."""

    call: Call
    inputs: tuple[Tensor, ...]
    arrays: list[Array]
    wanted: list[str]
    rows: int | None
    binary: bool
    deadline: float


class Calls(Core):
    """Core, and inference. `max_rows`: of one request, in place of what servers tell."""

    def __init__(self, server: str, retry: Retry, *, binary: bool | None, max_rows: int | None) -> None:
        super().__init__(server, retry, binary=binary)
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows: expected at least 1, got {max_rows}")
        self._max_rows = max_rows
        self._bounds: dict[tuple[str, str | None], _Bounds] = {}
        self._sizes: dict[str, int] = {}  # of inputs, by model: more bytes than that have been too large

    def predict(self, call: Call, inputs: Inputs) -> Flow[Any]:
        """The outputs by name; one array where `inputs` is one."""
        by_name = isinstance(inputs, Mapping)
        result = yield from self.infer(call, inputs, one=not by_name)
        if by_name:
            return result.outputs
        (array,) = result.outputs.values()
        return array

    def infer(self, call: Call, inputs: Inputs, *, one: bool = False) -> Flow[Result]:
        """`one`: the call must be for one output.

        What was remembered of the model may be that of a version that is gone. Where a call fails that other metadata
        or bounds might have let pass, they are asked for again, and if they are others, so is the call.
        """
        deadline = self.deadline(call.deadline_s)
        remembered = self.knows(call.key)
        metadata = yield from self.metadata(call.key, deadline)
        try:
            return (yield from self._infer(metadata, call, inputs, deadline, one))
        except (BadRequest, ValueError) as exc:
            if not remembered:
                raise
            newer = yield from self.metadata(call.key, deadline, fresh=True)
            before = self._bounds.pop(call.key, None)
            after = None if before is None else (yield from self._bounds_of(call.key, deadline))
            if (newer.inputs, newer.outputs, after) == (metadata.inputs, metadata.outputs, before):
                raise exc from exc.__cause__
        return (yield from self._infer(newer, call, inputs, deadline, one))

    def _infer(self, metadata: Metadata, call: Call, inputs: Inputs, deadline: float, one: bool) -> Flow[Result]:
        wanted = _wanted(metadata, call, one)
        arrays = _arrays(metadata, inputs)
        rows = _rows(metadata, arrays)
        binary = yield from self.speaks_binary(deadline)
        prepared = _Prepared(call, metadata.inputs, arrays, wanted, rows, binary, deadline)
        if rows is None or rows < 2:
            return _joined((yield from self._part(prepared, 0, rows, whole=True)))
        bounds = yield from self._bounds_of(call.key, deadline)
        parts = bounds.parts(rows)
        if call.model in self._sizes:
            parts = max(parts, -(-_size(arrays) // self._sizes[call.model]))
        if parts == 1:
            return _joined((yield from self._part(prepared, 0, rows, whole=True)))
        flows = [self._part(prepared, start, stop, whole=False) for start, stop in _cut(rows, min(parts, rows))]
        found: list[list[Part]] = yield Together(flows)
        return _joined([part for parts in found for part in parts])

    def _bounds_of(self, key: tuple[str, str | None], deadline: float) -> Flow[_Bounds]:
        """How many rows a request to a model may have.

        What the caller says, else `max_request_rows` of the model's configuration, which is the queue's length. A
        server without that is taken for Triton, which refuses a request of more than `max_batch_size` rows.
        """
        known = self._bounds.get(key)
        if known is not None:
            return known
        if self._max_rows is not None:
            known = _Bounds(self._max_rows, self._max_rows)
        else:
            most, batch = yield from self.configured_rows(key, deadline)
            known = _Bounds(batch, batch) if most is None else _Bounds(most, max(1, most // _OF_A_QUEUE))
        self._bounds[key] = known
        return known

    def _part(self, prepared: _Prepared, start: int, stop: int | None, *, whole: bool) -> Flow[list[Part]]:
        """Rows `start` to `stop` of a call. `whole`: they are all of it. Cut again where the server says 413."""
        call, rows = prepared.call, None if stop is None else stop - start
        arrays = prepared.arrays if whole else [array[start:stop] for array in prepared.arrays]
        name = call.request_id or ""
        request = encode(
            call, prepared.inputs, arrays, binary=prepared.binary,
            request_id=f"{name}.{start}" if name and not whole else name,
        )  # fmt: skip
        try:
            answer, tries = yield from self.ask(request, prepared.deadline)
            part = decode(answer, prepared.wanted, rows)
        except TooLarge:
            if rows is None or rows < 2:
                raise
        except StarlingError as exc:
            if not whole:
                exc.rows = (start, start + (rows or 0))
                exc.add_note(f"rows {start} to {exc.rows[1] - 1} of {prepared.rows}")
            raise
        else:
            part.tries = tries
            return [part]
        # Bytes are bounded, too, and servers tell that bound only by refusing. It is kept as bytes, not as rows: others
        # may be shorter.
        known = self._sizes.get(call.model, sys.maxsize)
        self._sizes[call.model] = max(1, min(known, _size(arrays) // 2))
        half = rows // 2
        first = yield from self._part(prepared, start, start + half, whole=False)
        return first + (yield from self._part(prepared, start + half, start + rows, whole=False))


def _size(arrays: Sequence[Array]) -> int:
    """Bytes of values, however they are encoded."""
    return sum(
        sum(map(len, array.ravel())) + 4 * array.size if array.dtype == object else array.nbytes for array in arrays
    )


def _wanted(metadata: Metadata, call: Call, one: bool) -> list[str]:
    """Names of the outputs that a call is to have. Raises ValueError."""
    known = [tensor.name for tensor in metadata.outputs]
    wanted = known if call.outputs is None else list(call.outputs)
    strange = [name for name in wanted if name not in known]
    if strange or len(set(wanted)) != len(wanted):
        raise ValueError(f"outputs: expected some of {', '.join(known)}, each once, got {wanted}")
    if one and len(wanted) != 1:
        raise ValueError(
            f"model {metadata.name!r} has the outputs {', '.join(known)}: name one, as in outputs=[{known[0]!r}], or "
            "give the input by name to get them all by name"
        )
    return wanted


def _arrays(metadata: Metadata, inputs: Inputs) -> list[Array]:
    """The inputs as arrays of their dtypes, in the model's order. Raises ValueError."""
    names = [tensor.name for tensor in metadata.inputs]
    if isinstance(inputs, Mapping):
        given: Mapping[str, npt.ArrayLike] = inputs
    elif len(names) == 1:
        given = {names[0]: inputs}
    else:
        raise ValueError(f"model {metadata.name!r} has the inputs {', '.join(names)}: give them by name")
    if set(given) != set(names):
        raise ValueError(f"inputs: expected {', '.join(names)}, got {', '.join(map(str, given)) or 'none'}")
    arrays = []
    for tensor in metadata.inputs:
        array = to_array(tensor.name, tensor.datatype, given[tensor.name])
        if array.ndim != len(tensor.shape):
            shape = ", ".join(
                ["rows" if metadata.in_rows else "?", *("?" if n < 0 else str(n) for n in tensor.shape[1:])]
            )
            hint = "; one row is [x]" if array.ndim == len(tensor.shape) - 1 else ""
            raise ValueError(f"input {tensor.name!r}: expected shape [{shape}], got {list(array.shape)}{hint}")
        arrays.append(array)
    return arrays


def _rows(metadata: Metadata, arrays: Sequence[Array]) -> int | None:
    """How many rows the inputs have; None where the model's tensors do not lead with rows. Raises ValueError."""
    if not metadata.in_rows:
        return None
    rows = {tensor.name: len(array) for tensor, array in zip(metadata.inputs, arrays, strict=True)}
    if len(set(rows.values())) != 1 or 0 in rows.values():
        told = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise ValueError(f"inputs: expected as many rows in each, and at least 1, got {told}")
    return next(iter(rows.values()))


def _joined(parts: Sequence[Part]) -> Result:
    """One result of all parts, in their order. Raises VersionChanged or BadAnswer."""
    versions = sorted({part.version for part in parts})
    if len(versions) > 1:
        raise VersionChanged(
            f"the model was changed meanwhile: parts were answered by versions {', '.join(versions)}; call again, or "
            "name the version"
        )
    outputs, lengths = {}, {}
    for name in parts[0].outputs:
        outputs[name] = _concatenated(name, [part.outputs[name] for part in parts])
        told = _lengths(name, parts)
        if told is not None:
            lengths[name] = told
    slowest = {
        f"{name}_ms": max(part.times_ms.get(name, 0.0) for part in parts) for name in ("queue", "compute", "total")
    }
    return Result(
        outputs, versions[0], lengths, tuple(part.request_id for part in parts if part.request_id),
        batch_size=max(part.batch_size for part in parts), tries=sum(part.tries for part in parts), **slowest,
    )  # fmt: skip


def _concatenated(name: str, arrays: Sequence[Array]) -> Array:
    """Arrays [rows, ...] behind one another; where rows end by themselves, with zeros up to the longest."""
    if len(arrays) == 1:
        return arrays[0]
    if len({(array.ndim, array.shape[2:], array.dtype) for array in arrays}) != 1:
        raise BadAnswer(f"output {name!r}: parts of shapes {', '.join(str(list(a.shape)) for a in arrays)}")
    if arrays[0].ndim < 2 or len({array.shape[1] for array in arrays}) == 1:
        return np.concatenate(arrays)
    rows, longest = sum(map(len, arrays)), max(array.shape[1] for array in arrays)
    joined = np.zeros((rows, longest, *arrays[0].shape[2:]), arrays[0].dtype)
    if joined.dtype == DTYPES["BYTES"]:
        joined.fill(b"")
    start = 0
    for array in arrays:
        joined[start : start + len(array), : array.shape[1]] = array
        start += len(array)
    return joined


def _lengths(name: str, parts: Sequence[Part]) -> tuple[int, ...] | None:
    """How long each row of an output is: servers tell it of several rows that end by themselves. None: all alike."""
    arrays = [part.outputs[name] for part in parts]
    if not any(name in part.lengths for part in parts) and len({array.shape[1:2] for array in arrays}) == 1:
        return None
    told = [part.lengths.get(name, array.shape[1:2] * len(array)) for part, array in zip(parts, arrays, strict=True)]
    return tuple(length for lengths in told for length in lengths)
