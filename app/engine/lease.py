"""A lease: the slots of one call, from admission to answer. One owner, freed once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from app.contract import Answer, Array
from app.engine.pool import Slots
from app.errors import ClientGone, ModelFailed, StarlingError
from app.scheduler.types import Call, Klass, Row

if TYPE_CHECKING:
    from app.engine.served import ServedModel


class Batch:
    """A finished batch as its calls see it: outputs of all its rows, and its times in nanoseconds."""

    __slots__ = ("outputs", "parts", "size", "started")

    def __init__(self, outputs: list[Array], started: int, parts: tuple[int, int, int], size: int) -> None:
        self.outputs = outputs
        self.started = started
        self.parts = parts
        self.size = size


class Lease:
    """Implements contract.Lease over one served model's pool."""

    __slots__ = (
        "_arrived", "_closed", "_deadline", "_future", "_lengths", "_priority", "_served", "_slots",
        "_submitted", "call", "error", "places", "rows", "running",
    )  # fmt: skip

    def __init__(
        self,
        served: ServedModel,
        slots: Slots,
        lengths: Mapping[str, int],
        priority: int,
        arrived: int,
        deadline: int | None,
    ) -> None:
        self._served = served
        self._slots = slots
        self._lengths = lengths
        self._priority = priority
        self._arrived = arrived
        self._deadline = deadline
        self._closed = False
        self._submitted = False
        self._future: asyncio.Future[Answer] | None = None
        self.rows = len(slots)
        self.call: Call | None = None
        self.running = 0  # rows in units: their slots are being read
        self.places: list[tuple[Batch, int]] = []  # per row that has ended: its batch, its place in it
        self.error = ""  # what the model said when a unit of this call failed

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def write(self, index: int, array: Array) -> None:
        """Copy input `index` into the slots."""
        self._served.pool.write(self._slots, index, array)

    async def run(self) -> Answer:
        """Submit, and wait. Raises a leaf of StarlingError; a cancelled waiter leaves the queue."""
        self._future = self._served.engine.loop.create_future()
        rows = [Row(slot) for slot in self._slots]
        if self._lengths:
            longest = max(self._lengths.values())
            for row in rows:
                row.length = longest
        engine = self._served.engine
        call = Call(
            engine.next_call(),
            self._served.program,
            rows,
            Klass.REALTIME,
            self._priority,
            self._arrived,
            self._deadline,
        )
        if len(rows) > 1:
            nothing = (_NOTHING, 0)
            self.places = [nothing] * len(rows)
        self.call = call
        self._submitted = True
        self._served.reserved -= self.rows
        engine.submit(self, call)
        return await self._future

    def waits_for(self, program: int) -> bool:
        """It is a call of that program of which nothing has started yet."""
        return self._served.program == program and not self.running and not self.places_filled

    @property
    def places_filled(self) -> bool:
        return bool(self.places) and any(batch is not _NOTHING for batch, _ in self.places)

    def cancel(self) -> None:
        """The caller has gone."""
        self.fail(ClientGone("the client went away before its answer"))

    def fail(self, error: StarlingError) -> None:
        """Answer the call with an error, unless it has its answer."""
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    def resolve(self) -> None:
        """All rows have ended: give the answer. Slots are free from here on."""
        future = self._future
        self._free()
        if future is None or future.done():
            return
        try:
            answer = self._answer()
        except Exception as exc:  # the outputs of two batches do not fit together
            future.set_exception(ModelFailed(f"model {self._served.info.name!r}: {type(exc).__name__}: {exc}"))
        else:
            future.set_result(answer)

    def place(self, row: int, batch: Batch, position: int) -> None:
        """Row `row` of the call has ended at `position` of `batch`."""
        if self.rows == 1:
            self.places.append((batch, position))
        else:
            self.places[row] = (batch, position)

    def _answer(self) -> Answer:
        batch, position = self.places[0]
        if self.rows == 1:
            outputs = [array[position : position + 1] for array in batch.outputs]
            slowest = batch
            size = batch.size
        else:
            outputs = _join(self.places)
            slowest = max((b for b, _ in self.places), key=lambda b: b.started + sum(b.parts))
            size = max(b.size for b, _ in self.places)
        if self._lengths:
            outputs = self._cut_back(outputs)
        queue_ns = max(0, slowest.started - self._arrived)
        self._served.stats.call_ran(queue_ns, slowest.parts)
        return Answer(outputs, queue_ns, sum(slowest.parts), size)

    def _cut_back(self, outputs: list[Array]) -> list[Array]:
        """An output's named axes end where the call's own inputs ended."""
        cut: list[Array] = []
        for spec, values in zip(self._served.info.outputs, outputs, strict=True):
            index: list[Any] = [slice(None)]
            index += [slice(self._lengths.get(axis)) if axis else slice(None) for axis in spec.axes]
            cut.append(values[tuple(index)])
        return cut

    def close(self) -> None:
        """The handler is done with the call. Slots that a unit still reads are freed when it ends."""
        if self._closed:
            return
        self._closed = True
        if not self._submitted:
            self._served.reserved -= self.rows
        elif self.call is not None and self.call.alive:
            self._served.engine.cancel(self.call.id)
        if not self.running:
            self._free()

    def unit_ended(self) -> None:
        """One row of this call is in no unit any more."""
        self.running -= 1
        if self._closed and not self.running:
            self._free()

    def _free(self) -> None:
        """Give the slots back, once."""
        if self._slots:
            slots, self._slots = self._slots, ()
            self._served.give_back(slots)


_NOTHING = Batch([], 0, (0, 0, 0), 0)


def _join(places: list[tuple[Batch, int]]) -> list[Array]:
    """The rows of a call in order, from however many batches; rows that lie side by side are one slice."""
    runs: list[tuple[Batch, int, int]] = []
    for batch, position in places:
        if runs and runs[-1][0] is batch and runs[-1][2] == position:
            runs[-1] = (batch, runs[-1][1], position + 1)
        else:
            runs.append((batch, position, position + 1))
    if len(runs) == 1:
        batch, first, end = runs[0]
        return [array[first:end] for array in batch.outputs]
    count = len(runs[0][0].outputs)
    return [np.concatenate([batch.outputs[index][first:end] for batch, first, end in runs]) for index in range(count)]
