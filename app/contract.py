"""The data types and protocols that the API, the engine and the models share. Nothing here needs torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: V2 datatype name -> numpy dtype of its memory. BF16 has no numpy dtype: its bits travel as uint16.
#: BYTES elements are Python `bytes` in object arrays.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}


#: Service classes by name, as clients and model.toml give them, in the order of service.
CLASSES = ("realtime", "best_effort")

_QUEUE_ROWS, _QUEUE_BATCHES = 1024, 32  # of a queue whose size is not given: at least so many of both

UNBOUNDED = 0  #: in place of a variable axis' largest length: there is none but what the size of a body allows


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output, as one row has it: the batch dimension is not part of `shape`.

    `axes[i]` is "" where axis i is fixed, else the axis' name: axes of one name share a length within a call, and an
    output's named axis is cut back to it. An input's axis declared as -1 gets a name of its own (`<tensor>.<i>`).
    `bounds` is `shape` with each variable axis replaced by its largest length, or UNBOUNDED. `minimum` and `maximum`
    are the values that an input of integers may hold; None: any that its datatype does.

    The server itself makes an input with `lengths_of` or `mask_of`; clients do not send it. `lengths_of` names an axis:
    the input holds each row's length along it. `mask_of` names an input of the same shape: the mask is 1 where that
    input holds a row's values, and 0 where it holds padding.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    bounds: tuple[int, ...]
    pad_value: float = 0
    labels: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    lengths_of: str = ""
    mask_of: str = ""
    #: Derived once, because every call needs them: the dtype in memory, and whether every axis has one length.
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    fixed: bool = field(init=False, repr=False, compare=False)
    #: Whether every axis has a largest length, so that memory for a row can be reserved.
    bounded: bool = field(init=False, repr=False, compare=False)
    #: Number of values in the largest row; 0 if there is no largest.
    count: int = field(init=False, repr=False, compare=False)
    #: Whether the server makes this input.
    made: bool = field(init=False, repr=False, compare=False)
    #: Whether `minimum` or `maximum` is given, and a value between them to try a model with.
    ranged: bool = field(init=False, repr=False, compare=False)
    example: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", DATATYPES[self.datatype])
        object.__setattr__(self, "fixed", not any(self.axes))
        object.__setattr__(self, "bounded", UNBOUNDED not in self.bounds)
        object.__setattr__(self, "count", prod(self.bounds))
        object.__setattr__(self, "made", bool(self.lengths_of or self.mask_of))
        object.__setattr__(self, "ranged", self.minimum is not None or self.maximum is not None)
        # 1 rather than 0: it is a valid id, and a mask of ones leaves values to average.
        example = 1 if self.minimum is None else max(1, self.minimum)
        object.__setattr__(self, "example", example if self.maximum is None else min(example, self.maximum))

    def axes_shown(self) -> list[str]:
        """The shape for people to read: lengths, and names of variable axes with the largest length they may have."""
        return [
            str(bound) if not axis else axis if bound == UNBOUNDED else f"{axis} <= {bound}"
            for axis, bound in zip(self.axes, self.bounds, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests to a model are queued and batched. Durations are in milliseconds."""

    policy: str = "adaptive"
    objective: str | float = "latency"  # of the policy adaptive: a name, or the weight of power, 0 to below 1
    max_batch: int = 32
    max_delay_ms: float = 5.0
    max_queue: int = 0  # rows of each class; 0: as many batches as the default has, and no fewer rows
    default_timeout_ms: float = 0.0  # 0: no deadline unless the call brings one
    default_priority: int = 2  # what priority 0 means; 1 is the highest
    default_class: str = CLASSES[0]  # of calls that name none
    length_buckets: tuple[int, ...] = ()  # upper ends of the lengths that may share a batch; none: any may
    reorder: bool = True  # the policy may pick the rows of a batch by their lengths

    def __post_init__(self) -> None:
        if not self.max_queue:
            object.__setattr__(self, "max_queue", max(_QUEUE_ROWS, _QUEUE_BATCHES * self.max_batch))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a caller may know of one version of a model. `inputs` are all that the model is called with, in order."""

    name: str
    version: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: Batching = field(default_factory=Batching)
    #: Axes of outputs that no input has, each the first of its output: along them a row is as long as it ran. A model
    #: with such axes returns one tensor more than `outputs`, INT64 [rows]: those lengths.
    own_axes: tuple[str, ...] = ()
    #: What codecs remember of requests to this version; they bound it.
    memo: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    #: Derived: the inputs that clients send, in the order declared. The others are made by the server.
    client_inputs: tuple[TensorSpec, ...] = field(init=False, repr=False, compare=False)
    #: Derived: the input that clients send, if it is the only one and its rows have one length; else None.
    plain_input: TensorSpec | None = field(init=False, repr=False, compare=False)
    #: Derived: whether there is one output, as long for each row, and JSON can hold its values as numbers.
    plain_output: bool = field(init=False, repr=False, compare=False)
    #: Derived: all that the model returns, in order.
    returned: tuple[TensorSpec, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sent = tuple(spec for spec in self.inputs if not spec.made)
        object.__setattr__(self, "client_inputs", sent)
        object.__setattr__(self, "plain_input", sent[0] if len(sent) == 1 and sent[0].fixed else None)
        plain = len(self.outputs) == 1 and self.outputs[0].datatype not in ("BYTES", "BF16")
        object.__setattr__(self, "plain_output", plain and not self.own_axes)
        made = (TensorSpec("lengths", "INT64", (), (), (), lengths_of=self.own_axes[0]),) if self.own_axes else ()
        object.__setattr__(self, "returned", (*self.outputs, *made))

    def has_own_length(self, spec: TensorSpec) -> bool:
        """Whether this output is as long as each row ran."""
        return spec.axes[:1] != () and spec.axes[0] in self.own_axes


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """One row to try a model with: an array per input that clients send, in order, without the batch dimension.

    `lengths` gives each variable axis its length in this row; `parameters` is what those of a request would be.
    """

    arrays: tuple[Array, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Translated:
    """What a front made of the inputs of a call: one array [rows, ...] per input that the model itself takes.

    Rows may differ in length: an array is as long as the longest, `lengths` gives each variable axis that length, and
    `own_lengths` the length of every row along it. `note` is the front's own, for when it answers the call.
    """

    arrays: list[Array]
    lengths: dict[str, int] = field(default_factory=dict)
    own_lengths: Mapping[str, Sequence[int]] | None = None
    note: Any = None


class Front(Protocol):
    """Translates between what clients send and get (texts, images, labels) and the tensors of a model.

    Any thread may call it, several at once. It takes its time, so it is never called on the event loop, but for
    `answer` where it is `quick`.
    """

    @property
    def quick(self) -> bool:
        """Whether a few rows are answered in microseconds."""
        ...

    @property
    def example(self) -> SampleRow | None:
        """A row as clients send it, that the front reads: the owner's first, or a made-up one."""
        ...

    @property
    def presented(self) -> Mapping[str, Any] | None:
        """The JSON schema of what `Model.present` makes of a row, if it does."""
        ...

    def face(self, info: ModelInfo) -> ModelInfo:
        """The model as clients see it."""
        ...

    def read(self, arrays: Sequence[Array]) -> Translated:
        """The model's inputs, from those of the face. Raises a leaf of StarlingError, such as BadRequest."""
        ...

    def answer(self, outputs: Sequence[Array], note: Any) -> tuple[list[Array], list[int] | None]:
        """The outputs of the face, and Answer.lengths, from what the model made of a call."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One version of a model, loaded: what the models package hands to the engine.

    `call` takes one batch-first tensor per input in the order declared (BYTES: a numpy object array of bytes) and
    returns a tensor, a tuple in the order of the outputs, or a mapping by output name. `decode` and `present` serve
    the friendly route and are None where the model has none. `takes_parameters` says that `call` accepts a keyword
    `parameters`: one mapping per row, of the call's parameters that are not reserved. `samples` are real rows that the
    owner gave to try the model with; `row_check` is "refuse", "warn" or "off", see models/row_check.py. `profile`: it
    may be measured while the server is idle.

    `info` describes the tensors that `call` takes and returns. Where there is a `front`, clients send and get something
    else, which the front's `face` describes.

    `stages` are the parts of `call`, where rows may join and leave a batch between them: the first takes what `call`
    does, each next one what the last returned, and then what `again` names for it by position: of the inputs, and
    behind them of what `context` makes of the inputs of a batch. A model of one piece has none. What runs it whole uses
    `call`.
    """

    info: ModelInfo
    call: Callable[..., Any]
    decode: Callable[[str, bytes], Mapping[str, Any]] | None = None
    present: Callable[[Mapping[str, Array]], Any] | None = None
    takes_parameters: bool = False
    samples: tuple[SampleRow, ...] = ()
    row_check: str = "refuse"
    profile: bool = True
    stages: tuple[Callable[..., Any], ...] = ()
    again: tuple[tuple[int, ...], ...] = ()
    context: Callable[..., Sequence[Any]] | None = None
    front: Front | None = None


class Finished:
    """A batch that has ended: `arrays` holds one array [rows, ...] per output in declared order, padding left out.

    `texts` is the codecs' own: what they made of all rows at once, because the answers of a batch are wanted together.
    """

    __slots__ = ("arrays", "texts")

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.texts: list[bytes] | None = None


class Answer:
    """What a lease's run gives: one array per output in declared order, `rows` leading; times in nanoseconds.

    `queue_ns` is what passed from submission to the end of the batch but for `compute_ns`: waiting, and handing over.
    Rows that ran in several batches: both are the slowest row's, `batch` is the largest. Where the answer is one row of
    a batch as it is, `finished` is that batch and `row` its place there; its arrays are then made when they are asked
    for. `lengths`: of a model with axes of its outputs' own, how long each row is along them; the arrays are as long as
    the longest, with zeros behind the others.
    """

    __slots__ = ("_outputs", "batch", "compute_ns", "finished", "lengths", "queue_ns", "row")

    def __init__(
        self,
        outputs: list[Array] | None,
        queue_ns: int,
        compute_ns: int,
        batch: int,
        finished: Finished | None = None,
        row: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self._outputs = outputs
        self.queue_ns = queue_ns
        self.compute_ns = compute_ns
        self.batch = batch
        self.finished = finished
        self.row = row
        self.lengths = lengths

    @property
    def outputs(self) -> list[Array]:
        outputs = self._outputs
        if outputs is None:
            assert self.finished is not None  # one of the two is given
            row = self.row
            outputs = self._outputs = [array[row : row + 1] for array in self.finished.arrays]
        return outputs


class Waiter(Protocol):
    """Who waits for an answer, on the event loop: an asyncio.Future is one. The last two are called at most once."""

    def done(self) -> bool:
        """Whether it has its answer, or waits no longer."""
        ...

    def set_result(self, answer: Answer, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class Lease(Protocol):
    """The slots of one call, from admission to answer. Whoever takes it closes it, or uses it as a context manager."""

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
        """Submit the rows: the waiter hears of their outputs, or of a leaf of StarlingError."""
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
        """What clients send and get: the model's own info, or the face of its front."""
        ...

    @property
    def model(self) -> Model: ...
    @property
    def example(self) -> SampleRow | None:
        """A row that the model was tried with and took: the owner's first, or a made-up one. None: it took none.

        Of a model with a front it is the front's: what the model was tried with is not what clients send.
        """
        ...

    # `klass` is one of CLASSES, or "" for the model's default.

    def has_room(self, klass: str, rows: int = 1) -> bool:
        """Whether a call of so many rows, without a deadline, can be taken now. Costs little."""
        ...

    def admit(self, rows: int, klass: str = "", deadline_ns: int | None = None) -> None:
        """Raise QueueFull, DeadlineUnreachable or NotReady if a call of so many rows cannot be taken now."""
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
        parameters: Mapping[str, Any] | None = None,
        arrived_ns: int | None = None,
    ) -> Lease:
        """Take slots for `rows` rows. `lengths` gives each named axis its length in this call.

        `own_lengths`: where rows of the call differ in length, the length of each along those axes, `lengths` being the
        longest. What lies beyond a row's own length is then not the row's, in what is written and in the answer. Only
        for inputs whose axes have a bound.
        `timeout_us` counts from `arrived_ns` (monotonic; now if None). Raises what `admit` raises.
        """
        ...

    def finish(self, outcome: str, total_ns: int, klass: str) -> None:
        """A call has been answered: `outcome` is "ok" or an error's code; `total_ns` from arrival to encoded answer."""
        ...

    def statistics(self) -> dict[str, Any]:
        """One element of Triton's `model_stats`, with our own numbers under `starling`."""
        ...


class ModelHost(Protocol):
    """What the registry needs of the engine."""

    async def start(self, model: Model) -> Served:
        """Try the model and open it to calls. Raises ConfigError when it does not do what it declares."""
        ...

    async def stop(self, served: Served) -> None:
        """Take no more calls, wait for those accepted, free everything."""
        ...


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index. `state` is READY, LOADING, UNLOADING, UNAVAILABLE or "" (never loaded)."""

    name: str
    version: str
    state: str
    reason: str = ""


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

    def index(self) -> Sequence[IndexEntry]: ...

    def pending(self) -> Sequence[IndexEntry]:
        """Required models that are not ready: what holds readiness back."""
        ...

    async def load(self, name: str) -> None:
        """Load, or load again, what the repository now holds for `name`; the old version serves until the new does.

        Raises NotFound, or BadRequest with the reason when it cannot be loaded.
        """
        ...

    async def unload(self, name: str) -> None:
        """Finish what was accepted, then free. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where one version of a model comes from: its folder, which holds model.toml."""

    name: str
    version: int
    folder: Path


class Health(Protocol):
    """What the probes ask, computed when they ask."""

    @property
    def closing(self) -> bool:
        """The server is going away: answers carry `Connection: close`."""
        ...

    def live(self) -> str | None:
        """None while the engine makes progress, else why not."""
        ...

    def ready(self) -> str | None:
        """None when required models are ready and the server is neither starting, draining nor dead, else why not."""
        ...
