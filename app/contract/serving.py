"""The interface of the engine and the registry for HTTP: served models, leases of calls, and the catalog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.contract.answers import Answer, GeneratedText, Pending
from app.contract.models import Model
from app.contract.specs import Array, ModelInfo, SampleRow
from app.scheduler.types import Klass


@dataclass(slots=True)
class ModelCall:
    """What a call asks of a model, whatever protocol it came by. The defaults mean: not given.

    `arrays`: one tensor [rows, ...] for each of `client_inputs`, in that order: an array, or its bytes. `lengths`: the
    length of each named axis. `own_lengths`: if rows differ in length, the length of each row along those axes;
    `lengths` is then the longest, and what lies beyond a row's own length, in its inputs and outputs, is padding.

    `timeout_us` bounds the time to the first piece of a streamed answer, `total_timeout_us` the time to the end.
    Without streaming the shorter one counts. Both start when the call arrived.
    """

    rows: int
    arrays: list[Array | memoryview] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    priority: int = 0
    timeout_us: int | None = None
    total_timeout_us: int | None = None
    klass: Klass | None = None
    parameters: dict[str, Any] | None = None
    own_lengths: Mapping[str, Sequence[int]] | None = None


class Lease(Pending, Protocol):
    """The slots of one call, from admission to answer. The caller must close it, or use it as a context manager.

    `submit` submits the rows; the waiter receives their outputs, or a leaf of StarlingError. After `abandon` the rows
    leave when the lease is closed.
    """

    on_close: Callable[[], None] | None  # called once, by `close`
    #: For a model that `writes`; set it before `submit`. Called on the event loop with a row's number and what
    #: the row has written since the last call. The answer repeats everything.
    on_piece: Callable[[int, GeneratedText], None] | None

    def __enter__(self) -> Lease: ...
    def __exit__(self, *exc: object) -> None: ...

    def run(self) -> Awaitable[Answer]:
        """Submit the rows and wait for their outputs, in a coroutine that is run as `wait` says.

        Raises a leaf of StarlingError. A task of asyncio waits for `awaited(lease)`.
        """

    def close(self) -> None:
        """Free the slots as soon as nothing reads them. May be called more than once."""


class Served(Protocol):
    """One loaded, warmed-up version of a model, as HTTP sees it."""

    #: The model as clients see it: its own info, or `Front.client_info`.
    info: ModelInfo
    model: Model
    klass: Klass  # of calls that name none

    @property
    def example(self) -> SampleRow | None:
        """A row that worked when the model was tried: the owner's first sample, or a made-up one. None: none worked.

        With a front it is the front's example, because the model itself was tried with other inputs than clients send.
        """

    @property
    def untried(self) -> Exception | None:
        """The error that the model raised on every made-up row, until a request has been answered; else None."""

    def has_room(self, klass: Klass, rows: int = 1) -> bool:
        """A quick test whether a call of `rows` rows without a deadline would be admitted now.

        True is never wrong. False may be, of several rows: `admit` knows.
        """

    def admit(self, rows: int, klass: Klass, deadline_ns: int | None = None) -> None:
        """Raise QueueFull, DeadlineUnreachable or NotReady if a call of `rows` rows cannot be admitted now.

        `rows` 0: not known yet; there must be room for one.
        """

    def lease(self, asked: ModelCall, arrived_ns: int | None = None) -> Lease:
        """Take slots for the call's rows, and write its arrays to them. `arrived_ns`: monotonic; now if None.

        A call without a class or a priority gets the model's.

        The values are copied, except for BYTES inputs and inputs without a largest length: their arrays are kept until
        the call has ended, so they must not change.

        Raises what `admit` raises, and BadRequest for a value or a parameter that the model refuses.
        """

    def finish(self, outcome: str, total_ns: int, klass: Klass, answer: Answer | None = None, rows: int = 0) -> None:
        """Count an answered call. `outcome`: "ok" or an error's code. `total_ns`: from arrival to encoded answer.

        `answer`, `rows`: of a call that went well.
        """

    def first_piece(self, ns: int, klass: Klass) -> None:
        """Count the first piece of a streamed answer, `ns` after the call's arrival."""

    def next_piece(self, ns: int, tokens: int, klass: Klass) -> None:
        """Count a later piece of `tokens` tokens, `ns` after the piece before."""

    def statistics(self) -> dict[str, Any]:
        """One element of Triton's `model_stats`, with our own numbers under `starling`."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The state of one version: a line of the repository index, of readiness and of the live page.

    `state`: READY, LOADING, UNLOADING, UNAVAILABLE or UNTRIED. An UNTRIED version serves, but has raised on every
    made-up row and not answered a request yet. `required`: named at start, and not unloaded since.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    required: bool = False

    def as_dict(self) -> dict[str, str]:
        """For JSON answers."""
        return {"name": self.name, "version": self.version, "state": self.state, "reason": self.reason}

    @property
    def serves(self) -> bool:
        return self.state in ("READY", "UNTRIED")

    @property
    def awaited(self) -> bool:
        """Whether the server is not ready because of it."""
        return self.required and not self.serves


class Catalog(Protocol):
    """The models of a server by name and version. Without a version, the highest that is ready is meant."""

    @property
    def serving(self) -> Mapping[tuple[str, str | None], Served]:
        """By name and version. Looking up raises NotFound for what is unknown, NotReady for what does not serve now."""

    def versions(self, name: str) -> Sequence[str]:
        """Ready versions of a model, lowest first. Raises NotFound."""

    def ready(self) -> Sequence[Served]:
        """All versions that serve now, ordered by name and version."""

    def index(self) -> Sequence[IndexEntry]:
        """Every known version with its state. All states that are shown or used come from here."""

    async def load(self, name: str) -> None:
        """Load or reload `name` from the repository. The old version serves until the new one does.

        Raises NotFound, or BadRequest with the reason if it cannot be loaded.
        """

    async def unload(self, name: str) -> None:
        """Answer the accepted calls, then free the model. Raises NotFound."""
