"""What is counted, and Triton's statistics of it. `exposition` shows it to Prometheus.

The hot path adds to plain integers (an observation costs 0.2 us here, 1.5 us as a prometheus_client child); instruments
are made of them when somebody scrapes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SECONDS = tuple(m * 10**e for e in range(-4, 2) for m in (1, 2.5, 5))  # 0.1 ms to 50 s
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Outcomes of calls that were turned away before they could wait.
REFUSALS = frozenset({"queue_full", "too_many_connections", "deadline_unreachable", "not_ready"})
BEST_EFFORT = "best_effort"  # the class that may have to wait for long


class Histogram:
    """Counts per bucket (the last: beyond all) and a sum; bounds are upper ends, inclusive."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, as Prometheus wants them."""
        seen, rows = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self.counts, strict=True):
            seen += count
            rows.append((bound, float(seen)))
        return rows


@dataclass(slots=True)
class Spent:
    """How often, and nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


def _total(spent: Iterable[Spent]) -> Spent:
    total = Spent()
    for one in spent:
        total.count += one.count
        total.ns += one.ns
    return total


@dataclass(slots=True)
class Parts:
    """The parts of compute: gathering inputs, the model, copying outputs."""

    input: Spent = field(default_factory=Spent)
    infer: Spent = field(default_factory=Spent)
    output: Spent = field(default_factory=Spent)

    def add(self, input_ns: int, infer_ns: int, output_ns: int) -> None:
        part = self.input
        part.count += 1
        part.ns += input_ns
        part = self.infer
        part.count += 1
        part.ns += infer_ns
        part = self.output
        part.count += 1
        part.ns += output_ns

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": self.input.as_dict(),
            "compute_infer": self.infer.as_dict(),
            "compute_output": self.output.as_dict(),
        }


class BatchStats:
    """What is counted about the batches of one class: of one stage, or of a model in one piece."""

    def __init__(self) -> None:
        self.compute = Histogram(_SECONDS)
        self.batch = Histogram(_SIZES)
        self.batches: Counter[tuple[int, str, str]] = Counter()  # (worker, reason, operation)

    def ran(self, worker: int, reason: str, operation: str, rows: int, spent_ns: int) -> None:
        """A batch has finished well."""
        self.batches[worker, reason, operation] += 1
        self.batch.observe(rows)
        self.compute.observe(spent_ns / 1e9)


class StageStats:
    """What is counted about the batches of one stage; of a model in one piece, about all of its batches."""

    def __init__(self, default_class: str) -> None:
        self.classes: defaultdict[str, BatchStats] = defaultdict(BatchStats)
        self.classes[default_class]  # which is shown before its first batch
        self.by_size: Counter[int] = Counter()

    def sizes(self) -> dict[str, int]:
        """Batches by their number of rows."""
        return {str(size): count for size, count in sorted(self.by_size.items())}

    def operations(self) -> dict[str, int]:
        """Batches by what they were in the batch table: new, stretch, split or on."""
        found: Counter[str] = Counter()
        for stats in self.classes.values():
            for (_, _, operation), count in stats.batches.items():
                found[operation] += count
        return dict(sorted(found.items()))


class CallStats:
    """What is counted about the calls of one class."""

    def __init__(self) -> None:
        self.request = Histogram(_SECONDS)
        self.refusal = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.outcomes: Counter[str] = Counter()
        self.success = Spent()
        self.failure = Spent()
        self.queued = Spent()

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {"success": self.success.as_dict(), "fail": self.failure.as_dict(), "queue": self.queued.as_dict()}


class ModelStats:
    """All that is counted about one version of a model. `stages`: how many it has that run one by one; 0: one piece.

    Of a model in stages, batches are counted by stage, and the counts of the whole when rows have ended.
    """

    def __init__(self, model: str, version: str, stages: int = 0, default_class: str = "realtime") -> None:
        self.stages = [StageStats(default_class) for _ in range(stages)]
        self.whole = StageStats(default_class)  # of a model in one piece
        self.model = model
        self.version = version
        self._calls: defaultdict[str, CallStats] = defaultdict(CallStats)  # by class; "": the default
        self._calls[""] = self._calls[default_class]
        self.parts = Parts()
        self.by_size: dict[int, Parts] = {}
        self.rows = 0
        self.rows_answered = 0  # of calls that ran to their end while their caller waited
        self.executions = 0
        self.last = 0.0  # seconds since the epoch
        self.profiled = Spent()  # batches that measured the model while it was idle, and what they computed

    def batch_ran(self, worker: int, reason: str, rows: int, parts: tuple[int, int, int], klass: str) -> None:
        """A batch has finished well; `parts` are nanoseconds of input, model and output."""
        self.executions += 1
        self.rows += rows
        self.whole.classes[klass].ran(worker, reason, "", rows, sum(parts))
        self._size_ran(rows, parts)

    def stage_ran(
        self, stage: int, worker: int, reason: str, operation: str, rows: int, parts: tuple[int, int, int], klass: str
    ) -> None:
        """A batch of one stage has finished well."""
        of_stage = self.stages[stage]
        of_stage.by_size[rows] += 1
        of_stage.classes[klass].ran(worker, reason, operation, rows, sum(parts))

    def rows_ended(self, rows: int, parts: tuple[int, int, int]) -> None:
        """A batch of the last stage has finished well; `parts` are those of all stages, of its slowest row."""
        self.executions += 1
        self.rows += rows
        self._size_ran(rows, parts)

    def _size_ran(self, rows: int, parts: tuple[int, int, int]) -> None:
        by_size = self.by_size.get(rows)
        if by_size is None:
            by_size = self.by_size[rows] = Parts()
        by_size.add(*parts)

    def call_ran(self, queue_ns: int, parts: tuple[int, int, int], klass: str, rows: int = 1) -> None:
        """All rows of a call have run, and its caller waits for them; times of its slowest row."""
        # Written out, here and below: every function called costs each request a tenth of a microsecond.
        seconds = queue_ns / 1e9
        calls = self._calls[klass]
        histogram, queued = calls.queue, calls.queued
        histogram.counts[bisect_left(_SECONDS, seconds)] += 1
        histogram.total += seconds
        queued.count += 1
        queued.ns += queue_ns
        self.parts.add(*parts)
        self.rows_answered += rows

    def call_answered(self, outcome: str, total_ns: int, klass: str) -> None:
        """A call has its answer: "ok" or an error's code; nanoseconds from arrival to encoded answer.

        `klass` "" is the default.
        """
        calls = self._calls[klass]
        calls.outcomes[outcome] += 1
        seconds = total_ns / 1e9
        histogram = calls.refusal if outcome in REFUSALS else calls.request
        histogram.counts[bisect_left(_SECONDS, seconds)] += 1
        histogram.total += seconds
        if outcome == "ok":
            spent = calls.success
            self.last = time.time()
        else:
            spent = calls.failure
        spent.count += 1
        spent.ns += total_ns

    @property
    def calls(self) -> dict[str, CallStats]:
        """By class: the default, and those that there have been calls of."""
        return {klass: calls for klass, calls in self._calls.items() if klass}

    def by_stage(self) -> Iterator[tuple[dict[str, str], BatchStats]]:
        """The labels `class`, and `stage` of a model in stages, with what is counted of such batches."""
        for klass, of_class in self.whole.classes.items() if not self.stages else ():
            yield {"class": klass}, of_class
        for stage, of_stage in enumerate(self.stages):
            for klass, of_class in of_stage.classes.items():
                yield {"stage": str(stage), "class": klass}, of_class

    # of all classes

    @property
    def batches(self) -> Counter[tuple[int, str]]:
        """Batches of all stages by worker and reason."""
        found: Counter[tuple[int, str]] = Counter()
        for _, of_class in self.by_stage():
            for (worker, reason, _), count in of_class.batches.items():
                found[worker, reason] += count
        return found

    @property
    def outcomes(self) -> Counter[str]:
        return sum((calls.outcomes for calls in self.calls.values()), Counter())

    @property
    def success(self) -> Spent:
        return _total(calls.success for calls in self.calls.values())

    @property
    def failure(self) -> Spent:
        return _total(calls.failure for calls in self.calls.values())

    @property
    def queued(self) -> Spent:
        return _total(calls.queued for calls in self.calls.values())

    def triton(self) -> dict[str, Any]:
        """One element of the statistics extension's `model_stats`."""
        nothing = {"count": 0, "ns": 0}
        return {
            "name": self.model,
            "version": self.version,
            "last_inference": int(self.last * 1000),
            "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.as_dict(),
                "fail": self.failure.as_dict(),
                "queue": self.queued.as_dict(),
                **self.parts.as_dict(),
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "response_stats": {},
            "batch_stats": [{"batch_size": size, **parts.as_dict()} for size, parts in sorted(self.by_size.items())],
            "memory_usage": [],
        }


@dataclass(frozen=True, slots=True)
class Between:
    """What a device keeps of rows between two stages; bytes of all batches of which a row is left."""

    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true of one model at this moment."""

    stats: ModelStats
    pending_rows: int
    pending_calls: int
    preferred: int
    rate: float
    slots_used: int
    regression: tuple[float, float, float] = (0.0, 0.0, 0.0)  # alpha, beta, residual of batch time on rows, ns
    between: Between | None = None  # for a model in stages
    waiting: Mapping[str, int] = field(default_factory=dict)  # rows, by class
    demand_ns: Mapping[str, int] = field(default_factory=dict)  # device time asked for since start, by class
    at_stages: Sequence[tuple[int, int]] = ()  # rows that wait and rows that run, of a model in stages
    oldest_ns: int = 0  # how long the oldest best-effort row has waited

    def classes(self) -> dict[str, dict[str, Any]]:
        """The statistics of each class of which there have been calls."""
        return {
            klass: {
                "queue_length": self.waiting.get(klass, 0),
                **({"oldest_ms": self.oldest_ns / 1e6} if klass == BEST_EFFORT else {}),
                **self.stats.calls.get(klass, CallStats()).as_dict(),
            }
            for klass in self.shown()
        }

    def shown(self) -> list[str]:
        """The classes to show: the default, and those of calls that have ended or wait."""
        first = (name for name, rows in self.waiting.items() if rows and name not in self.stats.calls)
        return [*self.stats.calls, *first]


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules since start, and where the number is from."""

    source: str
    joules: float


@dataclass(slots=True)
class Snapshot:
    """What a scrape shows: every model that serves, each worker's busy seconds, and what reads the energy.

    `lag_s`: how late the event loop turned to its last tick.
    """

    models: list[Gauges]
    busy_s: list[float]
    energy: Callable[[], Energy] | None = None
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """What the server is and how it is: its build, what its probes say, whether each model can be called, its HTTP."""

    build: Mapping[str, str]
    live: bool
    ready: bool
    models: Sequence[tuple[str, str, bool]]  # name, version, ready
    connections: int = 0  # open
    held_bytes: int = 0  # of bodies
    certificate_expires: float | None = None  # seconds since the epoch; None: no HTTPS
    rejected: Mapping[str, int] = field(default_factory=dict)  # requests that count for no model, by error code
