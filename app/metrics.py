"""Counters, and how they are shown: Prometheus text under our names and Triton's, and Triton's statistics.

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

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

_SECONDS = tuple(m * 10**e for e in range(-4, 2) for m in (1, 2.5, 5))  # 0.1 ms to 50 s
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LABELS = ("model", "version")
_BEST_EFFORT = "best_effort"  # the class that may have to wait for long


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


class StageStats:
    """What is counted about the batches of one stage; of a model in one piece, about all of its batches."""

    def __init__(self) -> None:
        self.compute = Histogram(_SECONDS)
        self.batch = Histogram(_SIZES)
        self.batches: Counter[tuple[int, str, str]] = Counter()  # (worker, reason, operation)
        self.by_size: Counter[int] = Counter()

    def ran(self, worker: int, reason: str, operation: str, rows: int, spent_ns: int) -> None:
        """A batch of this stage has finished well."""
        self.batches[worker, reason, operation] += 1
        self.by_size[rows] += 1
        self.batch.observe(rows)
        self.compute.observe(spent_ns / 1e9)

    def sizes(self) -> dict[str, int]:
        """Batches by their number of rows."""
        return {str(size): count for size, count in sorted(self.by_size.items())}

    def operations(self) -> dict[str, int]:
        """Batches by what they were in the batch table: new, stretch, split or on."""
        found: Counter[str] = Counter()
        for (_, _, operation), count in sorted(self.batches.items()):
            found[operation] += count
        return dict(found)


class CallStats:
    """What is counted about the calls of one class."""

    def __init__(self) -> None:
        self.request = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.outcomes: Counter[str] = Counter()
        self.success = Spent()
        self.failure = Spent()
        self.queued = Spent()

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {"success": self.success.as_dict(), "fail": self.failure.as_dict(), "queue": self.queued.as_dict()}


class ModelStats:
    """All that is counted about one version of a model. `stages`: how many it has that run one by one; 0: one piece.

    Of a model in stages, batches are counted by stage, and what stands for the whole is counted when rows have ended.
    """

    def __init__(self, model: str, version: str, stages: int = 0, default_class: str = "realtime") -> None:
        self.stages = [StageStats() for _ in range(stages)]
        self.model = model
        self.version = version
        self._calls: defaultdict[str, CallStats] = defaultdict(CallStats)  # by class; "": the default
        self._calls[""] = self._calls[default_class]
        self.compute = Histogram(_SECONDS)
        self.batch = Histogram(_SIZES)
        self.parts = Parts()
        self.batches: Counter[tuple[int, str]] = Counter()  # (worker, reason)
        self.by_size: dict[int, Parts] = {}
        self.rows = 0
        self.executions = 0
        self.last = 0.0  # seconds since the epoch

    def batch_ran(self, worker: int, reason: str, rows: int, parts: tuple[int, int, int]) -> None:
        """A batch has finished well; `parts` are nanoseconds of input, model and output."""
        self.executions += 1
        self.rows += rows
        self.batches[worker, reason] += 1
        self.batch.observe(rows)
        self.compute.observe(sum(parts) / 1e9)
        self._size_ran(rows, parts)

    def stage_ran(
        self, stage: int, worker: int, reason: str, operation: str, rows: int, parts: tuple[int, int, int]
    ) -> None:
        """A batch of one stage has finished well."""
        self.batches[worker, reason] += 1
        self.stages[stage].ran(worker, reason, operation, rows, sum(parts))

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

    def call_ran(self, queue_ns: int, parts: tuple[int, int, int], klass: str) -> None:
        """All rows of a call have run; times of its slowest row."""
        # Written out, here and below: every function called costs each request a tenth of a microsecond.
        seconds = queue_ns / 1e9
        calls = self._calls[klass]
        histogram, queued = calls.queue, calls.queued
        histogram.counts[bisect_left(_SECONDS, seconds)] += 1
        histogram.total += seconds
        queued.count += 1
        queued.ns += queue_ns
        self.parts.add(*parts)

    def call_answered(self, outcome: str, total_ns: int, klass: str) -> None:
        """A call has its answer: "ok" or an error's code; nanoseconds from arrival to encoded answer.

        `klass` "" is the default.
        """
        calls = self._calls[klass]
        calls.outcomes[outcome] += 1
        seconds = total_ns / 1e9
        histogram = calls.request
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

    # of all classes

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
    """What a device keeps of rows that stand between two stages; bytes of all batches of which a row is left."""

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
    oldest_ns: int = 0  # how long the oldest best-effort row has waited

    def classes(self) -> dict[str, dict[str, Any]]:
        """The statistics of each class of which there have been calls."""
        return {
            klass: {
                "queue_length": self.waiting.get(klass, 0),
                **({"oldest_ms": self.oldest_ns / 1e6} if klass == _BEST_EFFORT else {}),
                **self.stats.calls.get(klass, CallStats()).as_dict(),
            }
            for klass in self.shown()
        }

    def shown(self) -> list[str]:
        """The classes that are told of: of calls that have ended, or wait, or name none."""
        first = (name for name, rows in self.waiting.items() if rows and name not in self.stats.calls)
        return [*self.stats.calls, *first]


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules since start, and where the number is from."""

    source: str
    joules: float


@dataclass(slots=True)
class Snapshot:
    """What a scrape shows: every model that serves, each worker's busy seconds, and what reads the energy."""

    models: list[Gauges]
    busy_s: list[float]
    energy: Callable[[], Energy] | None = None


class Metrics(Collector):
    """Renders a snapshot taken at each scrape. One per server: no module-wide registry."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """Prometheus text and its content type."""
        text = generate_latest(self._registry) + _triton_text(self._snapshot().models).encode()
        return text, CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        return ()  # names do not depend on what runs, and a snapshot may not exist yet

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from _histograms(snapshot.models)
        yield from _counters(snapshot)
        yield from _gauges(snapshot.models)


def _histograms(models: list[Gauges]) -> Iterator[Metric]:
    for name, text in (
        ("request_duration_seconds", "From arrival to encoded answer."),
        ("queue_duration_seconds", "From submission to the end of the batch, less its computing, per call."),
        ("compute_duration_seconds", "Gather, model and copy out, per batch."),
        ("batch_size", "Rows per batch, padding apart."),
    ):
        family = HistogramMetricFamily(f"starling_{name}", text, labels=_LABELS)
        for gauges in models:
            stats = gauges.stats
            counted = name.partition("_")[0]
            if counted in ("request", "queue"):
                for klass, calls in stats.calls.items():
                    _add_histogram(family, stats, getattr(calls, counted), {"class": klass})
            elif stats.stages:
                for stage, of_stage in enumerate(stats.stages):
                    _add_histogram(family, stats, getattr(of_stage, counted), {"stage": str(stage)})
            else:
                _add_histogram(family, stats, getattr(stats, counted), {})
        yield family


def _add_histogram(
    family: HistogramMetricFamily, stats: ModelStats, histogram: Histogram, labels: Mapping[str, str]
) -> None:
    begin = len(family.samples)
    family.add_metric([stats.model, stats.version], histogram.buckets(), histogram.total)
    _label(family, begin, labels)


def _label(family: Metric, begin: int, labels: Mapping[str, str]) -> None:
    """Give the samples from `begin` on further labels, which not all of the family have."""
    family.samples[begin:] = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples[begin:]]


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "starling_requests", "Calls by class and by how they ended.", labels=[*_LABELS, "class", "outcome"]
    )
    batches = CounterMetricFamily(
        "starling_batches", "Batches by worker and by why they were formed.", labels=[*_LABELS, "worker", "reason"]
    )
    for gauges in snapshot.models:
        stats = gauges.stats
        for klass, calls in stats.calls.items():
            for outcome, count in sorted(calls.outcomes.items()):
                requests.add_metric([stats.model, stats.version, klass, outcome], count)
        if not stats.stages:
            for (worker, reason), count in sorted(stats.batches.items()):
                batches.add_metric([stats.model, stats.version, str(worker), reason], count)
        for stage, of_stage in enumerate(stats.stages):
            for (worker, reason, operation), count in sorted(of_stage.batches.items()):
                begin = len(batches.samples)
                batches.add_metric([stats.model, stats.version, str(worker), reason], count)
                _label(batches, begin, {"stage": str(stage), "operation": operation})
    busy = CounterMetricFamily("starling_worker_busy_seconds", "Time each worker spent on units.", labels=["worker"])
    for worker, seconds in enumerate(snapshot.busy_s):
        busy.add_metric([str(worker)], seconds)
    yield from (requests, batches, busy)
    if snapshot.energy is not None:
        energy = snapshot.energy()
        joules = CounterMetricFamily("starling_energy_joules", "Energy since start, by its source.", labels=["source"])
        joules.add_metric([energy.source], energy.joules)
        yield joules


def _gauges(models: list[Gauges]) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, Callable[[Gauges], float]], ...] = (
        (
            "preferred_batch_size",
            "The batch size whose throughput just exceeds the arrival rate.",
            lambda g: g.preferred,
        ),
        ("arrival_rate", "Rows per second that came over the last window, those refused included.", lambda g: g.rate),
        ("pool_slots_used", "Input slots in use.", lambda g: g.slots_used),
        ("batch_time_alpha_seconds", "Batch time as a line: its value at 0 rows.", lambda g: g.regression[0] / 1e9),
        ("batch_time_beta_seconds", "Batch time as a line: seconds per row.", lambda g: g.regression[1] / 1e9),
        ("batch_time_residual_seconds", "Root mean square error of that line.", lambda g: g.regression[2] / 1e9),
    )
    for name, text, value in rows:
        family = GaugeMetricFamily(f"starling_{name}", text, labels=_LABELS)
        for gauges in models:
            family.add_metric([gauges.stats.model, gauges.stats.version], value(gauges))
        yield family
    yield from _by_class(models)
    yield from _between([gauges for gauges in models if gauges.between is not None])


def _by_class(models: list[Gauges]) -> Iterator[Metric]:
    """What waits. The oldest only of models that have had best-effort calls: others wait in turn."""
    rows = GaugeMetricFamily("starling_queue_length", "Rows that wait, by class.", labels=[*_LABELS, "class"])
    oldest = GaugeMetricFamily(
        "starling_best_effort_oldest_seconds", "How long the oldest best-effort row has waited.", labels=_LABELS
    )
    for gauges in models:
        stats = gauges.stats
        for klass in gauges.shown():
            rows.add_metric([stats.model, stats.version, klass], gauges.waiting.get(klass, 0))
            if klass == _BEST_EFFORT:
                oldest.add_metric([stats.model, stats.version], gauges.oldest_ns / 1e9)
    yield rows
    if oldest.samples:
        yield oldest


def _between(models: list[Gauges]) -> Iterator[Metric]:
    """Nothing without models in stages."""
    rows = GaugeMetricFamily("starling_activation_rows", "Rows kept between two stages.", labels=_LABELS)
    nbytes = GaugeMetricFamily("starling_activation_bytes", "Memory of what is kept of them.", labels=_LABELS)
    for gauges in models:
        if gauges.between is not None:
            labels = [gauges.stats.model, gauges.stats.version]
            rows.add_metric(labels, gauges.between.rows)
            nbytes.add_metric(labels, gauges.between.nbytes)
    if models:
        yield from (rows, nbytes)


def _triton_text(models: list[Gauges]) -> str:
    """Triton's names, written out: its counters lack the `_total` that prometheus_client appends to every counter."""
    rows: tuple[tuple[str, str, str, Callable[[Gauges], int]], ...] = (
        ("request_success", "counter", "Successful calls.", lambda g: g.stats.success.count),
        ("count", "counter", "Rows inferred.", lambda g: g.stats.rows),
        ("exec_count", "counter", "Batches run.", lambda g: g.stats.executions),
        ("pending_request_count", "gauge", "Calls admitted and not yet running.", lambda g: g.pending_calls),
        ("request_duration_us", "counter", "Time of calls, in all.", lambda g: g.stats.success.ns // 1000),
        ("queue_duration_us", "counter", "Time in the queue, in all.", lambda g: g.stats.queued.ns // 1000),
        ("compute_input_duration_us", "counter", "Gathering inputs.", lambda g: g.stats.parts.input.ns // 1000),
        ("compute_infer_duration_us", "counter", "Running models.", lambda g: g.stats.parts.infer.ns // 1000),
        ("compute_output_duration_us", "counter", "Copying outputs.", lambda g: g.stats.parts.output.ns // 1000),
    )
    lines: list[str] = []
    for name, kind, text, value in rows:
        lines += [f"# HELP nv_inference_{name} {text}", f"# TYPE nv_inference_{name} {kind}"]
        lines += [f"nv_inference_{name}{{{_labels(g)}}} {value(g)}" for g in models]
    lines += ["# HELP nv_inference_request_failure Failed calls.", "# TYPE nv_inference_request_failure counter"]
    for gauges in models:
        for reason, count in sorted(_triton_reasons(gauges.stats.outcomes).items()):
            lines.append(f'nv_inference_request_failure{{{_labels(gauges)},reason="{reason}"}} {count}')
    return "\n".join(lines) + "\n"


def _labels(gauges: Gauges) -> str:
    return f'model="{gauges.stats.model}",version="{gauges.stats.version}"'


def _triton_reasons(outcomes: Counter[str]) -> Counter[str]:
    """Triton knows four reasons: REJECTED (by the queue), CANCELED, BACKEND (the model) and OTHER."""
    known = {
        "queue_full": "REJECTED",
        "deadline_unreachable": "REJECTED",
        "deadline_exceeded": "REJECTED",
        "client_gone": "CANCELED",
        "model_failed": "BACKEND",
    }
    reasons: Counter[str] = Counter(dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0))
    for outcome, count in outcomes.items():
        if outcome != "ok":
            reasons[known.get(outcome, "OTHER")] += count
    return reasons
