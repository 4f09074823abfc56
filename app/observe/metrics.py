"""Counters and histograms of models, and Triton's statistics. `prometheus.py` renders them for Prometheus.

The hot path adds to plain integers: an observation costs 0.2 us, and 1.5 us with prometheus_client. Prometheus families
are made of them at each scrape.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from app.contract import CLASSES, Answer, Klass, Times
from app.errors import codes

_SECONDS = tuple(m * 10**e for e in range(-4, 2) for m in (1, 2.5, 5))  # 0.1 ms to 50 s
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Outcomes of calls that were refused at admission.
REFUSALS = frozenset({"queue_full", "too_many_connections", "deadline_unreachable", "not_ready"})
#: How a call may end: ok, or an error's code but for those of requests that name no model.
OUTCOMES = ("ok", *sorted(codes() - {"unauthorized", "not_found", "method_not_allowed"}))


@cache
def _bounds(bounds: Sequence[float]) -> list[str]:
    return [*map(str, bounds), "+Inf"]


class Histogram:
    """Counts per bucket, and a sum. Bounds are inclusive upper ends; the last bucket has none."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        return list(zip(_bounds(self._bounds), accumulate(self.counts), strict=True))

    def __add__(self, other: Histogram) -> Histogram:
        """Both together. They have the same bounds."""
        found = Histogram(self._bounds)
        found.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        found.total = self.total + other.total
        return found

    def as_dict(self) -> dict[str, int]:
        """Of durations in seconds: how many, and their sum in nanoseconds."""
        return {"count": sum(self.counts), "ns": round(self.total * 1e9)}


@dataclass(slots=True)
class ComputeParts:
    """A count, and the sums of nanoseconds of each part of computing: gathering inputs, the model, copying outputs."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, count: int, parts: Times) -> None:
        self.count += count
        self.input_ns += parts[0]
        self.infer_ns += parts[1]
        self.output_ns += parts[2]

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": {"count": self.count, "ns": self.input_ns},
            "compute_infer": {"count": self.count, "ns": self.infer_ns},
            "compute_output": {"count": self.count, "ns": self.output_ns},
        }


class BatchStats:
    """Statistics of the batches of one class, of one stage or of the whole model."""

    def __init__(self) -> None:
        self.compute = Histogram(_SECONDS)
        self.batches: Counter[tuple[int, str, str]] = Counter()  # (worker, reason, operation)
        self.by_size: defaultdict[int, ComputeParts] = defaultdict(ComputeParts)

    def ran(self, worker: int, reason: str, operation: str, rows: int, parts: Times) -> None:
        """Count a batch that ran without error."""
        self.batches[worker, reason, operation] += 1
        # `observe` and `add` are written out, here and below: each function call costs a request 0.1 us.
        spent, seconds, compute = self.by_size[rows], sum(parts) / 1e9, self.compute
        spent.count += 1
        spent.input_ns += parts[0]
        spent.infer_ns += parts[1]
        spent.output_ns += parts[2]
        compute.counts[bisect_left(_SECONDS, seconds)] += 1
        compute.total += seconds

    def sizes(self) -> Histogram:
        """Batches by their number of rows."""
        sizes = Histogram(_SIZES)
        for rows, parts in self.by_size.items():
            sizes.observe(rows, parts.count)
        return sizes


class BatchesByClass(defaultdict[Klass, BatchStats]):
    """Statistics by class of the batches of one stage, or of the whole model."""

    def by_size(self) -> dict[int, ComputeParts]:
        """The batches of all classes by their number of rows."""
        found: defaultdict[int, ComputeParts] = defaultdict(ComputeParts)
        for stats in self.values():
            for rows, parts in stats.by_size.items():
                found[rows].add(parts.count, (parts.input_ns, parts.infer_ns, parts.output_ns))
        return dict(sorted(found.items()))

    def operations(self) -> dict[str, int]:
        """Batches by operation in the batch table: new, stretch, split or on."""
        found: Counter[str] = Counter()
        for stats in self.values():
            for (_, _, operation), count in stats.batches.items():
                found[operation] += count
        return dict(sorted(found.items()))


class CallStats:
    """Statistics of the calls of one class."""

    def __init__(self) -> None:
        # from arrival to encoded answer, by how calls ended
        self.ok = Histogram(_SECONDS)
        self.failed = Histogram(_SECONDS)
        self.refusal = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.first = Histogram(_SECONDS)  # from arrival to the first piece of a streamed text
        self.token = Histogram(_SECONDS)  # between two tokens of it
        self.outcomes: Counter[str] = Counter()

    @property
    def request(self) -> Histogram:
        """Of calls that were not refused."""
        return self.ok + self.failed

    def as_dict(self) -> dict[str, dict[str, int]]:
        fail = self.failed + self.refusal
        return {"success": self.ok.as_dict(), "fail": fail.as_dict(), "queue": self.queue.as_dict()}


class ModelStats:
    """Statistics of one version of a model. `stages`: number of stages that run one by one; 0: it is in one piece.

    `whole`: the batches of a model in one piece. For a model in stages: the batches that ended rows, with the times of
    their slowest row summed over all stages.
    """

    def __init__(self, model: str, version: str, stages: int = 0, default_class: Klass = Klass.REALTIME) -> None:
        self.stages = [BatchesByClass(BatchStats) for _ in range(stages)]
        self.whole = BatchesByClass(BatchStats)
        self.model = model
        self.version = version
        self.by_class = {klass: CallStats() for klass in Klass}
        self._default = default_class
        self.parts = ComputeParts()
        self.rows_answered = 0  # of calls that were answered well
        self.tokens = {"prompt": 0, "generated": 0}  # of ended rows, for a model that generates text
        self.last = 0.0  # seconds since the epoch
        self.profiled = Histogram(())  # compute times of the batches that measured the idle model

    def call_answered(
        self, outcome: str, total_ns: int, klass: Klass, answer: Answer | None = None, rows: int = 0
    ) -> None:
        """Count an answered call. `outcome`: "ok" or an error's code. `total_ns`: from arrival to encoded answer.

        `answer`, `rows`: of a call that ran to its end. Its times are its slowest row's.
        """
        calls = self.by_class[klass]
        calls.outcomes[outcome] += 1
        seconds = total_ns / 1e9
        histogram = calls.ok if outcome == "ok" else calls.refusal if outcome in REFUSALS else calls.failed
        histogram.counts[bisect_left(_SECONDS, seconds)] += 1
        histogram.total += seconds
        if answer is None:
            return
        self.last = time.time()
        self.rows_answered += rows
        queue, parts, seconds = calls.queue, self.parts, answer.queue_ns / 1e9
        queue.counts[bisect_left(_SECONDS, seconds)] += 1
        queue.total += seconds
        input_ns, infer_ns, output_ns = answer.times
        parts.count += 1
        parts.input_ns += input_ns
        parts.infer_ns += infer_ns
        parts.output_ns += output_ns

    def first_piece(self, ns: int, klass: Klass) -> None:
        """Count the first piece of a streamed text, `ns` after the call's arrival."""
        self.by_class[klass].first.observe(ns / 1e9)

    def next_piece(self, ns: int, tokens: int, klass: Klass) -> None:
        """Count a later piece of `tokens` tokens, `ns` after the piece before."""
        self.by_class[klass].token.observe(ns / 1e9 / tokens, tokens)

    def wrote(self, read: int, written: int) -> None:
        """Count the tokens of ended rows: of their prompts, and generated."""
        self.tokens["prompt"] += read
        self.tokens["generated"] += written

    @property
    def calls(self) -> dict[str, CallStats]:
        """By name of the class: the default, and those with calls."""
        by_class, default = self.by_class.items(), self._default
        return {str(klass): calls for klass, calls in by_class if calls.outcomes or klass is default}

    def by_stage(self) -> Iterator[tuple[dict[str, str], BatchStats]]:
        """The labels `class`, and `stage` for a model in stages, each with the statistics of its batches."""
        for name, klass in CLASSES.items():
            for stage, of_stage in enumerate(self.stages):
                yield {"stage": str(stage), "class": name}, of_stage[klass]
            if not self.stages:
                yield {"class": name}, self.whole[klass]

    # sums over all classes

    @property
    def rows(self) -> int:
        """Rows that have run."""
        return sum(rows * parts.count for rows, parts in self.whole.by_size().items())

    @property
    def executions(self) -> int:
        """Batches that ended rows."""
        return sum(parts.count for parts in self.whole.by_size().values())

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
    def spent(self) -> dict[str, dict[str, int]]:
        """See CallStats.as_dict: counts and nanoseconds of success, fail and queue."""
        each = [calls.as_dict() for calls in self.calls.values()]
        return {part: {unit: sum(one[part][unit] for one in each) for unit in each[0][part]} for part in each[0]}

    def triton(self) -> dict[str, Any]:
        """One element of the statistics extension's `model_stats`."""
        nothing = {"count": 0, "ns": 0}
        return {
            "name": self.model,
            "version": self.version,
            "last_inference": int(self.last * 1000),
            "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {**self.spent, **self.parts.as_dict(), "cache_hit": nothing, "cache_miss": nothing},
            "response_stats": {},
            "batch_stats": [{"batch_size": size, **parts.as_dict()} for size, parts in self.whole.by_size().items()],
            "memory_usage": [],
        }
