"""What callers give and get."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
ServiceClass: TypeAlias = Literal["realtime", "best_effort"]
Parameter: TypeAlias = str | int | float | bool

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,110}")  # the server takes 128: what names a part comes behind
_RESERVED = frozenset({"timeout", "total_timeout", "priority", "class", "binary_data_output"})


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model. `shape` leads with -1 for the rows; any other -1 is an axis of variable length."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a server says of a model: `versions` are those that are ready, lowest first."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def in_rows(self) -> bool:
        """Whether all tensors lead with rows, so that a batch may be cut and joined again."""
        return all(tensor.shape[:1] == (-1,) for tensor in (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one call: an array [rows, ...] for each output, rows in the order sent.

    `version` is that of the model which answered. `lengths` has, for outputs whose rows end by themselves, how long
    each row is; zeros follow. Of a batch that was cut, `request_ids` has one for each part, and the times are those of
    its slowest part. `queue_ms`, `compute_ms` and `total_ms` are the server's, milliseconds, 0 where it tells none.
    `batch_size`: rows of the largest batch that its rows ran in, 0 where not told. `tries`: requests sent for it.
    """

    outputs: dict[str, Array]
    version: str
    lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    request_ids: tuple[str, ...] = ()
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    total_ms: float = 0.0
    batch_size: int = 0
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Retry:
    """When a request is sent again, and when that ends.

    Sent again are those that the server has not run: answered 429, but for a `timeout_ms` that cannot be met, or never
    sent because no connection was made. And those answered 503, which a server that is starting, draining or loading
    gives; one that is forced to stop gives it to requests that run, too. Where `lost`, also those whose connection
    broke before the answer: the model may then run twice on the same rows, which does no harm to a model without side
    effects. Nothing else is.

    A try waits as long as the server's Retry-After says, else `first_wait_s`, doubled each time up to `longest_wait_s`;
    up to the fraction `jitter` of that is added at random, so that clients do not come back together. `deadline_s`
    bounds the whole call, every wait, try and part of a batch included; a wait that would pass it is not begun.
    """

    deadline_s: float = 30.0
    attempts: int = 10
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    jitter: float = 0.1
    lost: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s < math.inf:
            raise ValueError(f"deadline_s: expected seconds above 0 and finite, got {self.deadline_s}")
        if self.attempts < 1:
            raise ValueError(f"attempts: expected at least 1, got {self.attempts}")
        if not 0 < self.first_wait_s <= self.longest_wait_s:
            raise ValueError("first_wait_s: expected seconds above 0 and at most longest_wait_s")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter: expected a fraction from 0 to 1, got {self.jitter}")


DEFAULT_RETRY = Retry()


class Options(TypedDict, total=False):
    """What any call may say besides its inputs.

    `version`: of the model; the highest that is ready, if not given. `outputs`: names of those wanted, all if not
    given. `timeout_ms`: the server's deadline, from the arrival of each request; later than that it answers 504, or 429
    if it can tell before. Of a stream that is until its first piece, and `total_timeout_ms` until its end. `priority`:
    within the class, 1 is the highest. `service_class`: "realtime" or "best_effort". `request_id`: up to 110 visible
    ASCII characters, for the server's log and its answer. `parameters`: reach the model. `deadline_s`: in place of
    `Retry.deadline_s`.
    """

    version: str | int
    outputs: Sequence[str]
    timeout_ms: float
    total_timeout_ms: float
    priority: int
    service_class: ServiceClass
    request_id: str
    parameters: Mapping[str, Parameter]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """One call, checked: `Options` with the model's name. Raises ValueError for what no server would take."""

    model: str
    version: str | int | None = None
    outputs: Sequence[str] | None = None
    timeout_ms: float | None = None
    total_timeout_ms: float | None = None
    priority: int = 0
    service_class: ServiceClass | None = None
    request_id: str | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name, timeout in (("timeout_ms", self.timeout_ms), ("total_timeout_ms", self.total_timeout_ms)):
            if timeout is not None and not 0 < timeout < math.inf:
                raise ValueError(f"{name}: expected milliseconds above 0 and finite, got {timeout}")
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise ValueError(f"deadline_s: expected seconds above 0 and finite, got {self.deadline_s}")
        if self.service_class not in (None, "realtime", "best_effort"):
            raise ValueError(f"service_class: expected 'realtime' or 'best_effort', got {self.service_class!r}")
        if self.request_id is not None and not _REQUEST_ID.fullmatch(self.request_id):
            raise ValueError("request_id: expected 1 to 110 visible ASCII characters")
        if isinstance(self.outputs, str) or (self.outputs is not None and not self.outputs):
            raise ValueError(f"outputs: expected a list of at least one name, got {self.outputs!r}")
        taken = sorted(_RESERVED.intersection(self.parameters))
        if taken:
            raise ValueError(f"parameters: {', '.join(taken)}: an option of the call has this name or meaning")

    @property
    def key(self) -> tuple[str, str | None]:
        """The model and version as the client remembers them."""
        return self.model, None if self.version is None else str(self.version)
