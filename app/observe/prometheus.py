"""How what is counted is shown: Prometheus text, under our names and Triton's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from app.observe.metrics import BEST_EFFORT, Gauges, Histogram, ModelStats, Snapshot, Status

_LABELS = ("model", "version")
#: Ends of the buckets of a scrape. Times are counted in finer ones; so many series of 50 models would be 300 kB.
_BOUNDS = frozenset(map(str, (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10)))


#: Shown before there are any.
_REASONS = ("malformed", "not_found", "too_many_connections", "unauthorized")


class Metrics(Collector):
    """Renders a snapshot taken at each scrape. One per server: no module-wide registry.

    `status`: how the server is at that moment; None leaves it out.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], status: Callable[[], Status] | None = None) -> None:
        self._snapshot = snapshot
        self._status = status
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
        if self._status is not None:
            yield from _of_status(self._status())
        snapshot = self._snapshot()
        yield GaugeMetricFamily(
            "starling_loop_lag_seconds", "How late the event loop turned to its last tick.", value=snapshot.lag_s
        )
        yield from _histograms(snapshot.models)
        yield from _counters(snapshot)
        yield from _gauges(snapshot.models)


def _of_status(status: Status) -> Iterator[Metric]:
    build = GaugeMetricFamily("starling_build_info", "1; the labels say what runs.", labels=list(status.build))
    build.add_metric(list(status.build.values()), 1)
    yield build
    yield GaugeMetricFamily("starling_live", "What the liveness probe says: 1 is well.", value=status.live)
    yield GaugeMetricFamily("starling_ready", "What the readiness probe says: 1 is ready.", value=status.ready)
    models = GaugeMetricFamily("starling_model_ready", "1 where the model can be called.", labels=_LABELS)
    for name, version, ready in status.models:
        models.add_metric([name, version], ready)
    yield models
    yield GaugeMetricFamily("starling_open_connections", "Connections that are open.", value=status.connections)
    yield GaugeMetricFamily("starling_held_bytes", "Bytes of the bodies that are held.", value=status.held_bytes)
    if status.certificate_expires is not None:
        yield GaugeMetricFamily(
            "starling_certificate_expiry_seconds",
            "When the certificate is no longer valid, in seconds since the epoch.",
            value=status.certificate_expires,
        )
    rejected = CounterMetricFamily(
        "starling_rejected", "Requests that count for no model, by why they were refused.", labels=["reason"]
    )
    for reason, count in sorted({**dict.fromkeys(_REASONS, 0), **status.rejected}.items()):
        rejected.add_metric([reason], count)
    yield rejected


def _histograms(models: list[Gauges]) -> Iterator[Metric]:
    for name, text in (
        ("request_duration_seconds", "From arrival to encoded answer, of calls that were not refused."),
        ("refusal_duration_seconds", "From arrival to encoded answer, of calls that were refused."),
        ("queue_duration_seconds", "From submission to the end of the batch, less its computing, per call."),
        ("compute_duration_seconds", "Gather, model and copy out, per batch."),
        ("batch_size", "Rows per batch, padding apart."),
    ):
        family = HistogramMetricFamily(f"starling_{name}", text, labels=_LABELS)
        for gauges in models:
            stats = gauges.stats
            counted = name.partition("_")[0]
            if counted in ("request", "refusal", "queue"):
                for klass, calls in stats.calls.items():
                    _add_histogram(family, stats, getattr(calls, counted), {"class": klass})
            else:
                for labels, batches in stats.by_stage():
                    _add_histogram(family, stats, getattr(batches, counted), labels)
        yield family


def _add_histogram(
    family: HistogramMetricFamily, stats: ModelStats, histogram: Histogram, labels: Mapping[str, str]
) -> None:
    """Nothing of one that is empty: most of many models are not called."""
    if not any(histogram.counts):
        return
    begin = len(family.samples)
    buckets = histogram.buckets()
    if not family.name.endswith("_size"):
        buckets = [(end, seen) for end, seen in buckets[:-1] if end in _BOUNDS] + buckets[-1:]
    family.add_metric([stats.model, stats.version], buckets, histogram.total)
    _label(family, begin, labels)


def _label(family: Metric, begin: int, labels: Mapping[str, str]) -> None:
    """Give the samples from `begin` on further labels, which not all of the family have."""
    family.samples[begin:] = [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples[begin:]]


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "starling_requests", "Calls by class and by how they ended.", labels=[*_LABELS, "class", "outcome"]
    )
    batches = CounterMetricFamily(
        "starling_batches", "Batches by class, worker and why they were formed.", labels=[*_LABELS, "worker", "reason"]
    )
    for gauges in snapshot.models:
        stats = gauges.stats
        for klass, calls in stats.calls.items():
            for outcome, count in sorted(calls.outcomes.items()):
                requests.add_metric([stats.model, stats.version, klass, outcome], count)
        for labels, of_class in stats.by_stage():
            for (worker, reason, operation), count in sorted(of_class.batches.items()):
                begin = len(batches.samples)
                batches.add_metric([stats.model, stats.version, str(worker), reason], count)
                _label(batches, begin, {**labels, "operation": operation} if stats.stages else labels)
    answered = CounterMetricFamily(
        "starling_rows_answered", "Rows of calls that ran to their end while their caller waited.", labels=_LABELS
    )
    for gauges in snapshot.models:
        answered.add_metric([gauges.stats.model, gauges.stats.version], gauges.stats.rows_answered)
    yield answered
    yield from _profiled([gauges.stats for gauges in snapshot.models])
    yield _demand(snapshot.models)
    busy = CounterMetricFamily("starling_worker_busy_seconds", "Time each worker spent on units.", labels=["worker"])
    for worker, seconds in enumerate(snapshot.busy_s):
        busy.add_metric([str(worker)], seconds)
    yield from (requests, batches, busy)
    if snapshot.energy is not None:
        energy = snapshot.energy()
        joules = CounterMetricFamily("starling_energy_joules", "Energy since start, by its source.", labels=["source"])
        joules.add_metric([energy.source], energy.joules)
        yield joules


def _demand(models: list[Gauges]) -> Metric:
    """Of the default class always, since the autoscaler asks for it; of the other once there are calls of it."""
    text = "Device time that calls asked for, refused ones too, at the rate of full batches."
    family = CounterMetricFamily("starling_demand_seconds", text, labels=[*_LABELS, "class"])
    for gauges in models:
        for klass, ns in gauges.demand_ns.items():
            if ns or klass in gauges.stats.calls:
                family.add_metric([gauges.stats.model, gauges.stats.version, klass], ns / 1e9)
    return family


def _profiled(models: list[ModelStats]) -> Iterator[Metric]:
    batches = CounterMetricFamily(
        "starling_profile_batches", "Batches that measured an idle model; in no other figure.", labels=_LABELS
    )
    seconds = CounterMetricFamily("starling_profile_seconds", "What they took to compute.", labels=_LABELS)
    for stats in models:
        batches.add_metric([stats.model, stats.version], stats.profiled.count)
        seconds.add_metric([stats.model, stats.version], stats.profiled.ns / 1e9)
    yield from (batches, seconds)


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
            if klass == BEST_EFFORT:
                oldest.add_metric([stats.model, stats.version], gauges.oldest_ns / 1e9)
    yield rows
    if oldest.samples:
        yield oldest


def _between(models: list[Gauges]) -> Iterator[Metric]:
    """Nothing without models in stages."""
    rows = GaugeMetricFamily("starling_activation_rows", "Rows kept between two stages.", labels=_LABELS)
    nbytes = GaugeMetricFamily("starling_activation_bytes", "Memory of what is kept of them.", labels=_LABELS)
    by_stage = [*_LABELS, "stage"]
    waiting = GaugeMetricFamily("starling_stage_queue_length", "Rows that wait, by stage.", labels=by_stage)
    running = GaugeMetricFamily("starling_stage_running_rows", "Rows that run, by stage.", labels=by_stage)
    for gauges in models:
        labels = [gauges.stats.model, gauges.stats.version]
        if gauges.between is not None:
            rows.add_metric(labels, gauges.between.rows)
            nbytes.add_metric(labels, gauges.between.nbytes)
        for stage, (here, there) in enumerate(gauges.at_stages):
            waiting.add_metric([*labels, str(stage)], here)
            running.add_metric([*labels, str(stage)], there)
    if models:
        yield from (rows, nbytes, waiting, running)


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
