"""A model placed on a device (Executor), the units that it runs (Job, Stop), and what comes of them (Ran)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from app.contract import Array, GeneratedText, Model, TensorSpec
from app.engine.pool import Place, Pool, Slots, pad_beyond, rows_at, select_rows
from app.models.base import stacked
from app.models.process_state import SeedWatch, Setting
from app.models.stages.staged import SecondAxes, resized
from app.scheduler.types import Klass, Outcome

R = TypeVar("R")

NO_BOUND = 1 << 30  # rows
WHOLE = -1  # as a stage: run all stages, one after another
TRIED_TOKENS = 8  # the most tokens that a text gets in a batch run WHOLE: later steps would show nothing new


@dataclass(slots=True)
class Ran:
    """A finished batch. `outputs`: one array [rows, ...] per output, in memory of its own. Then nanoseconds of each
    part.

    `overlapped`: inputs and outputs were copied while the worker could compute other batches. `steps`: the stages, or
    steps of a cell, that ran. There are no outputs if another stage follows. `stages_ns`: the time of each stage that
    ran, of a model in stages. `step_ns`: the time of one step of a model run by its cell, 0 if rows only read their
    prompts; None for other models. `ended`: of such a model, the positions of rows that have ended; only these have
    outputs. `continues`: the worker has continued with the other rows. `lengths` [rows with outputs]: their lengths
    along axes that only outputs have; None if there are none.
    """

    outputs: list[Array]
    input_ns: int
    infer_ns: int
    output_ns: int
    overlapped: bool = False
    stages_ns: tuple[int, ...] = ()
    step_ns: int | None = None
    steps: int = 1
    ended: tuple[int, ...] = ()
    continues: bool = False
    lengths: Array | None = None

    @property
    def busy_ns(self) -> int:
        """How long the batch occupied its worker."""
        return self.infer_ns if self.overlapped else self.input_ns + self.infer_ns + self.output_ns

    def outcome(self, unit_id: int) -> Outcome:
        """The report to the scheduler of a unit that ran well."""
        if self.step_ns is not None:  # the rest of the time counts as hand-over
            return Outcome(unit_id, None, self.infer_ns, self.ended, self.steps, (self.step_ns,), self.continues)
        times: tuple[int, ...] = ()
        if self.steps > 1 and self.stages_ns:
            times = self.stages_ns if self.overlapped else tuple(map(sum, self.stage_parts))
        return Outcome(unit_id, None, self.busy_ns, self.ended, self.steps, times)

    @property
    def stage_parts(self) -> list[tuple[int, int, int]]:
        """(input, model, output) nanoseconds of each stage: inputs count for the first, outputs for the last."""
        stages = self.stages_ns or (self.infer_ns,)
        return [
            (0 if number else self.input_ns, ns, self.output_ns if number == len(stages) - 1 else 0)
            for number, ns in enumerate(stages)
        ]

    @property
    def by_stage_ns(self) -> tuple[int, ...]:
        """For a model that ran WHOLE: the time of a batch at each stage; for a recurrent one, of a step."""
        if self.step_ns:
            return (self.step_ns,)
        return tuple(map(sum, self.stage_parts)) if len(self.stages_ns) > 1 else self.stages_ns


@dataclass(slots=True)
class Stop:
    """What the event loop and the worker of a unit share while it runs; each field has one writer.

    The loop writes `now`: end with the running stage or step, and those launched behind it; and `at_next_row`: end when
    a row ends, else report that row and continue with the others. The worker writes `made`: stages or steps made since
    its last report.
    """

    now: bool = False
    at_next_row: bool = True
    made: int = 0


class Readers(NamedTuple):
    """Who gets texts while they are written: `send` is called with the new part of each, by slot, on the worker's
    thread."""

    slots: frozenset[int]
    send: Callable[[Mapping[int, GeneratedText]], None]


class Job(NamedTuple):
    """A unit as a device sees it: the rows in `slots` of a placed model run as a batch of `size`.

    The worker runs `steps` stages from `stage` on, or steps of a segment that repeats, one after another by itself; a
    Stop ends it earlier. WHOLE: all of the model, and nothing is kept of the rows. If a later step fails, the unit ends
    well with the one before. `klass`: of all of its rows.
    """

    unit_id: int
    executor: Executor
    slots: Slots
    size: int
    stage: int = WHOLE
    steps: int = 1
    klass: Klass = Klass.REALTIME
    readers: Readers | None = None


class Steps(NamedTuple):
    """How many steps a row of a recurrent model makes: at most `most` (0: unbounded), and as many as its length, unless
    the cell itself ends it (`own`)."""

    most: int
    own: bool


# what a device keeps of rows


class Kept(dict[int, R]):
    """Of one placed model: what is known of each row between two units, by its slot, which it has until it ends. Worker
    threads write it, each for its own rows; the event loop releases rows that have ended or left.

    `row_bytes`: the most that a row has taken so far, twice if what a unit reads and makes of it exist at once; 0:
    memory for all slots is reserved. `reserved`: rows that memory is reserved for; 0: it is allocated as needed.
    `place_bytes`: of a row's place in slabs.
    """

    reserved = 0
    row_bytes = 0
    place_bytes = 0

    def bound(self, most: int) -> None:
        """At most so many rows will be alive at once. Called before serving."""

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return len(self) * self.place_bytes

    def missing(self, slots: Slots) -> list[int]:
        """Those of these slots of whose rows nothing is kept."""
        return [slot for slot in slots if slot not in self]

    def of(self, slots: Slots) -> list[R]:
        """The rows in these slots, which are kept."""
        return [self[slot] for slot in slots]

    def join(self, slots: Slots, rows: Iterable[R]) -> None:
        """Keep rows, or what is known of them from now on."""
        self.update(zip(slots, rows, strict=True))

    def release(self, slots: Slots) -> None:
        """Forget these rows, which will not continue. Rows that are not kept are ignored."""
        for slot in slots:
            row = self.pop(slot, None)
            if row is not None:
                self._left(row)

    def _left(self, row: R) -> None:
        """A row was released. On the event loop."""


class Activations(Kept[tuple[int, Place]]):
    """The tensors of rows between two stages of a placed model: for each row the stage that it has completed last, and
    its place in the result of that batch, whose memory is freed when its last row has continued, ended or left.

    A unit gets copies. For rows of different lengths, the second axis of a tensor is cut or padded with 0 if it has
    always been as long as a variable axis of its batch (`SecondAxes`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.axes = SecondAxes()

    @property
    def nbytes(self) -> int:
        """Bytes of all batches of which a row is still kept."""
        batches = {id(tensors): tensors for _, (tensors, _) in list(self.values())}
        return sum(value.nbytes for tensors in batches.values() for value in tensors)

    def commit(self, slots: Slots, stage: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """The rows in these slots are the first of this result from now on, and in none of a stage before."""
        self.join(slots, [(stage, (tensors, position)) for position in range(len(slots))])

    def places_of(self, slots: Slots, stage: int) -> list[Place]:
        """The places of these rows, which must have completed `stage` last. Slots may repeat, as padding."""
        found = self.of(slots)
        if others := {completed for completed, _ in found} - {stage}:  # a bug of the scheduler
            raise RuntimeError(f"stage {stage + 1}: a row comes from stage {min(others)}")
        return [place for _, place in found]

    def learn(self, stage: int, tensors: Sequence[torch.Tensor], longest: Mapping[str, int]) -> None:
        """Learn from a result of `stage` which tensors are as long as the batch, and how much memory a row takes.

        If two workers do so at once, the smaller size may be kept; the next large batch corrects that.
        """
        if longest:
            self.axes.learn(stage, tensors, longest)
        taken = sum(value.nbytes for value in tensors)
        self.row_bytes = max(self.row_bytes, -(-2 * taken // len(tensors[0])))  # a stage's input, and its result

    def gather(
        self,
        places: Sequence[Place],
        stage: int,
        longest: Mapping[str, int],
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """The arguments of `stage` for a batch of the rows at these places, at the lengths `longest`: see `rows_at`."""

        def fit(number: int, rows: torch.Tensor) -> torch.Tensor:
            axis = self.axes.of(stage - 1, number) if longest else ""
            return resized(rows, longest[axis]) if axis else rows

        return rows_at(places, fit, into)


# a model on a device


class Executor:
    """A model placed on a device.

    `activations`: what is kept of rows between two units; None if the device runs the model whole. `steps`: of a
    recurrent model that the device runs step by step, known after its first trial. `keeps_memory`: the first batch of
    each size allocates memory that is kept, so every size should run before serving. `one_unit`: it can run only one
    unit at a time. `unruly`: settings of the process that its batches change, see `process_state`.
    """

    keeps_memory = False
    one_unit = False
    activations: Kept[Any] | None = None
    steps: Steps | None = None
    unruly: tuple[Setting, ...] = ()

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool
        self.calls = model.stages.calls or (model.call,)
        self.last = len(self.calls) - 1  # stage
        if model.stages:
            self.activations = self.passed = Activations()
        self.seeds = SeedWatch()

    def lengths_of(self, rows: Slots) -> tuple[Mapping[str, Array], Mapping[str, int]]:
        """Each row's length along each variable axis, and the longest of them."""
        if len(rows) == 1:
            (row,) = rows
            alone = {axis: values[row : row + 1] for axis, values in self.pool.lengths.items()}
            return alone, {axis: int(values[0]) for axis, values in alone.items()}
        lengths = {axis: values[rows] for axis, values in self.pool.lengths.items()}
        return lengths, {axis: int(values.max()) for axis, values in lengths.items()}

    def keywords(self, rows: Sequence[int]) -> dict[str, Any]:
        """The keyword arguments of a model that takes parameters: copies, as rows of a call have the same object."""
        if not self.model.takes_parameters:
            return {}
        given = (self.pool.parameters[slot] for slot in rows)
        return {"parameters": [{} if one is None else deepcopy(one) for one in given]}

    def stacked(self, position: int, rows: Sequence[int]) -> Any:
        """The rows of an input that has no slab: text as an array of bytes, others as a tensor on the host."""
        return stacked([self.pool.views[position][slot] for slot in rows], self.pool.specs[position])

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
