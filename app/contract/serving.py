"""What serves, as its callers see it: models, their calls, the catalog of them, the probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

from app.contract.answers import Answer, Waiter
from app.contract.models import Model
from app.contract.specs import Array, ModelInfo, SampleRow


class Lease(Protocol):
    """The slots of one call, from admission to answer. Whoever takes it closes it, or uses it as a context manager."""

    on_close: Callable[[], None] | None  # called once, when it is closed
    #: Of a model that `writes` texts or `streams` outputs, to be set before `submit`: called on the event loop with the
    #: number of a row, what it has made since the last call, and its tokens or steps so far. What it has made is a
    #: text with why that has ended, "" before it has, or an array [steps, ...] of each streamed output. The answer has
    #: all of it all the same.
    on_piece: Callable[[int, Any, int], None] | None

    # for traces

    @property
    def id(self) -> int:
        """A number that no other lease of the engine has."""
        ...

    @property
    def rows(self) -> Sized: ...
    @property
    def entered(self) -> int:
        """When the rows were submitted, on the engine's clock."""
        ...

    def __enter__(self) -> Lease: ...
    def __exit__(self, *exc: object) -> None: ...

    def write(self, index: int, values: Array | memoryview) -> None:
        """Write input number `index` of the client's inputs: an array [rows, ...], or the bytes of one of its dtype.

        The values are copied, but for inputs of text and inputs without a largest length: their arrays are kept until
        the call has ended, so they must not change.
        """
        ...

    def submit(self, waiter: Waiter) -> None:
        """Submit the rows: the waiter gets their outputs, or a leaf of StarlingError."""
        ...

    def run(self) -> asyncio.Future[Answer]:
        """Submit the rows; the future gives their outputs. Raises a leaf of StarlingError."""
        ...

    def close(self) -> None:
        """Nobody waits any more: slots are freed, as soon as nothing reads them. Any number of times."""
        ...

    def cancel(self) -> None:
        """The caller has gone: waiting rows are forgotten and `run` raises ClientGone."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scheduler plans the batches of one program with, as it is at this moment.

    `batch_ns[b - 1]`: what b rows take, as profiled; `origin`: where that is from. `scale`: observed over profiled
    time. `tables[i][n]`: rows to run of n that wait, 0 for wait, at load `loads[i]`; none where the policy looks
    nothing up, or they are not solved yet. `level`: the table for the load now, -1 below all. `stages`: those that run
    one by one; 0: it runs in one piece. `cell`: it runs by the steps of its cell.
    """

    program: int
    batch_ns: tuple[int, ...]
    origin: str
    scale: float
    handover_ns: int
    loads: tuple[float, ...] = ()
    tables: tuple[tuple[int, ...], ...] = ()
    level: int = -1
    stages: int = 0
    cell: bool = False


class Served(Protocol):
    """One loaded, warmed version of a model as the API sees it."""

    @property
    def info(self) -> ModelInfo:
        """What clients send and get: the model's own info, or `Front.client_info`."""
        ...

    @property
    def model(self) -> Model: ...
    @property
    def example(self) -> SampleRow | None:
        """A row that the model was tried with and took: the owner's first, or a made-up one. None: it took none.

        Of a model with a front it is the front's: what the model was tried with is not what clients send.
        """
        ...

    @property
    def untried(self) -> Exception | None:
        """What the model raised on every made-up row, as long as no request has been answered; else None."""
        ...

    # `klass` is one of CLASSES, or "" for the model's default.

    def has_room(self, klass: str, rows: int = 1) -> bool:
        """Whether a call of so many rows, without a deadline, can be taken now. Costs little."""
        ...

    def admit(self, rows: int, klass: str = "", deadline_ns: int | None = None) -> None:
        """Raise QueueFull, DeadlineUnreachable or NotReady if a call of so many rows cannot be taken now.

        0: they are not known yet, and one must have room.
        """
        ...

    def lease(
        self,
        rows: int,
        *,
        lengths: Mapping[str, int] = {},
        own_lengths: Mapping[str, Sequence[int]] | None = None,
        klass: str = "",
        priority: int = 0,
        timeout_us: int | None = None,
        total_timeout_us: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        arrived_ns: int | None = None,
    ) -> Lease:
        """Take slots for `rows` rows. `lengths` gives each named axis its length in this call.

        `own_lengths`: where rows of the call differ in length, the length of each along those axes, `lengths` being the
        longest. What lies beyond a row's own length is then not the row's, in what is written and in the answer. Only
        for inputs whose axes have a bound.
        `timeout_us` is until its first piece, `total_timeout_us` until its end; without pieces the shorter one holds.
        Both count from `arrived_ns` (monotonic; now if None). Raises what `admit` raises.
        """
        ...

    def finish(self, outcome: str, total_ns: int, klass: str) -> None:
        """A call has been answered: `outcome` is "ok" or an error's code; `total_ns` from arrival to encoded answer."""
        ...

    def first_piece(self, ns: int, klass: str) -> None:
        """A call that is streamed is sent the first piece of its text, `ns` after its arrival."""
        ...

    def next_piece(self, ns: int, tokens: int, klass: str) -> None:
        """It is sent another, of so many tokens, `ns` after the one before."""
        ...

    def statistics(self) -> dict[str, Any]:
        """One element of Triton's `model_stats`, with our own numbers under `starling`."""
        ...


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The state of one version: a line of the repository index, of readiness and of the live page.

    `state` is READY, LOADING, UNLOADING or UNAVAILABLE; UNTRIED serves, but has raised on every made-up row, and has
    answered no request yet. `required`: it was asked for at start, and not unloaded since.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    required: bool = False

    def as_dict(self) -> dict[str, str]:
        """For an answer."""
        return {"name": self.name, "version": self.version, "state": self.state, "reason": self.reason}

    @property
    def serves(self) -> bool:
        return self.state in ("READY", "UNTRIED")

    @property
    def awaited(self) -> bool:
        """It keeps the server from being ready."""
        return self.required and not self.serves


class Catalog(Protocol):
    """The models a server has, by name and version. No version means the highest that is ready."""

    def find(self, name: str, version: str | None = None) -> Served:
        """Raises NotFound for an unknown model or version, NotReady for one that is known but not serving."""
        ...

    def versions(self, name: str) -> Sequence[str]:
        """Ready versions of a model, lowest first. Raises NotFound."""
        ...

    def ready(self) -> Sequence[Served]:
        """All versions that serve now, by name and version."""
        ...

    def index(self) -> Sequence[IndexEntry]:
        """Every version known, with its state: whoever shows or uses a state takes it from here."""
        ...

    async def load(self, name: str) -> None:
        """Load, or load again, what the repository now holds for `name`; the old version serves until the new does.

        Raises NotFound, or BadRequest with the reason when it cannot be loaded.
        """
        ...

    async def unload(self, name: str) -> None:
        """Finish what was accepted, then free. Raises NotFound."""
        ...
