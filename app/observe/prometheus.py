"""Prometheus text of what is counted, under our names and Triton's.

It is made on the event loop. Lines are written here, because prometheus_client's writer takes three times as long: 50
models in use are 5,500 lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.observe.metrics import BEST_EFFORT, Histogram
from app.observe.snapshot import Gauges, Snapshot, Status

#: Ends of the buckets on a page; what is counted is finer. Buckets without a count stay: where all requests are slower
#: than a bound, an alert on the share below it would find no series.
_SECONDS = frozenset(map(str, (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10)))
_REFUSAL_SECONDS = frozenset(map(str, (0.001, 0.01, 0.1, 1)))
#: Refusals that are on a page before there are any.
_REASONS = ("malformed", "not_found", "too_many_connections", "unauthorized")
#: Triton knows four reasons: REJECTED (by the queue), CANCELED, BACKEND (the model) and OTHER.
_TRITON_REASONS = {
    "queue_full": "REJECTED",
    "deadline_unreachable": "REJECTED",
    "deadline_exceeded": "REJECTED",
    "client_gone": "CANCELED",
    "model_failed": "BACKEND",
}


class Metrics:
    """Renders a snapshot taken at each scrape.

    `status`: how the server is at that moment; None leaves it out.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], status: Callable[[], Status] | None = None) -> None:
        self._snapshot = snapshot
        self._status = status
        self._process = (ProcessCollector(registry=None), PlatformCollector(registry=None))

    def render(self) -> tuple[bytes, str]:
        """Prometheus text and its content type."""
        families = [*self.collect(), *_triton(self._snapshot().models)]
        for collector in self._process:
            families += collector.collect()
        return "".join(map(_text, families)).encode(), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """What has our names."""
        if self._status is not None:
            yield from _of_status(self._status())
        snapshot = self._snapshot()
        yield _single("loop_lag_seconds", "How late the event loop turned to its last tick.", snapshot.lag_s)
        yield from _histograms(snapshot.models)
        yield from _counters(snapshot)
        yield from _gauges(snapshot.models)


def _text(family: Metric) -> str:
    """Its lines. Labels are sorted, so that a page compresses well. Triton's counters do not end in `_total`."""
    suffix = "_total" if family.type == "counter" and not family.name.startswith("nv_") else ""
    lines = [f"# HELP {family.name}{suffix} {family.documentation}\n# TYPE {family.name}{suffix} {family.type}\n"]
    for sample in family.samples:
        labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels.items())])
        shown = f"{{{labels}}}" if labels else ""
        lines.append(f"{sample.name}{shown} {float(sample.value)!r}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(kind: str, name: str, text: str) -> Metric:
    return Metric(f"starling_{name}", text, kind)


def _single(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    family = _family("gauge", name, text)
    family.add_sample(family.name, {}, value)
    return family


def _count(family: Metric, labels: dict[str, str], value: float) -> None:
    """Add a sample to a counter."""
    family.add_sample(f"{family.name}_total", labels, value)


def _of(gauges: Gauges, **more: str) -> dict[str, str]:
    """The labels of a model."""
    return {"model": gauges.stats.model, "version": gauges.stats.version, **more}


def _of_status(status: Status) -> Iterator[Metric]:
    build = _family("gauge", "build_info", "1; the labels say what runs.")
    build.add_sample(build.name, dict(status.build), 1)
    yield build
    yield _single("live", "What the liveness probe says: 1 is well.", status.live)
    yield _single("ready", "What the readiness probe says: 1 is ready.", status.ready)
    models = _family("gauge", "model_ready", "1 where the model can be called.")
    for name, version, ready in status.models:
        models.add_sample(models.name, {"model": name, "version": version}, ready)
    yield models
    yield _single("open_connections", "Connections that are open.", status.connections)
    yield _single("held_bytes", "Bytes of the bodies that are held.", status.held_bytes)
    if status.certificate_expires is not None:
        text = "When the certificate is no longer valid, in seconds since the epoch."
        yield _single("certificate_expiry_seconds", text, status.certificate_expires)
    rejected = _family("counter", "rejected", "Requests that count for no model, by why they were refused.")
    for reason, count in sorted({**dict.fromkeys(_REASONS, 0), **status.rejected}.items()):
        _count(rejected, {"reason": reason}, count)
    yield rejected


def _histograms(models: list[Gauges]) -> Iterator[Metric]:
    for name, text, bounds in (
        ("request_duration_seconds", "From arrival to encoded answer, of calls that were not refused.", _SECONDS),
        ("refusal_duration_seconds", "From arrival to encoded answer, of calls that were refused.", _REFUSAL_SECONDS),
        ("queue_duration_seconds", "From submission to the end of the batch, less its computing, per call.", _SECONDS),
        ("first_token_seconds", "From arrival to the first piece of a text, of calls that are streamed.", _SECONDS),
        ("token_interval_seconds", "Between two tokens of a text that is streamed.", _SECONDS),
    ):
        family = _family("histogram", name, text)
        for gauges in models:
            for klass, calls in gauges.stats.calls.items():
                _add_histogram(family, getattr(calls, name.partition("_")[0]), bounds, _of(gauges, **{"class": klass}))
        yield family
    compute = _family("histogram", "compute_duration_seconds", "Gather, model and copy out, per batch.")
    sizes = _family("histogram", "batch_size", "Rows per batch, padding apart.")
    for gauges in models:
        for labels, batches in gauges.stats.by_stage():
            _add_histogram(compute, batches.compute, _SECONDS, _of(gauges, **labels))
            _add_histogram(sizes, batches.sizes(), None, _of(gauges, **labels))
    yield from (compute, sizes)


def _add_histogram(family: Metric, histogram: Histogram, bounds: frozenset[str] | None, labels: dict[str, str]) -> None:
    """Nothing of one that is empty: most of many models are not called. `bounds`: of the buckets to show; None: all."""
    if not any(histogram.counts):
        return
    *buckets, (end, count) = histogram.buckets()
    for bound, seen in buckets:
        if bounds is None or bound in bounds:
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, seen)
    family.add_sample(f"{family.name}_bucket", {**labels, "le": end}, count)
    family.add_sample(f"{family.name}_count", labels, count)
    family.add_sample(f"{family.name}_sum", labels, histogram.total)


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    requests = _family("counter", "requests", "Calls by class and by how they ended.")
    batches = _family("counter", "batches", "Batches by class, worker and why they were formed.")
    answered = _family("counter", "rows_answered", "Rows of calls that ran to their end while their caller waited.")
    profiled = _family("counter", "profile_batches", "Batches that measured an idle model; in no other figure.")
    profiling = _family("counter", "profile_seconds", "What they took to compute.")
    tokens = _family("counter", "tokens", "Tokens of rows that have ended, of models that write texts.")
    demand_text = "Device time that calls asked for, refused ones too, at the rate of full batches."
    demand = _family("counter", "demand_seconds", demand_text)
    for gauges in snapshot.models:
        stats = gauges.stats
        for klass, calls in stats.calls.items():
            for outcome, count in sorted(calls.outcomes.items()):
                _count(requests, _of(gauges, outcome=outcome, **{"class": klass}), count)
        for labels, of_class in stats.by_stage():
            for (worker, reason, operation), count in sorted(of_class.batches.items()):
                more = {**labels, "operation": operation} if stats.stages else labels
                _count(batches, _of(gauges, worker=str(worker), reason=reason, **more), count)
        _count(answered, _of(gauges), stats.rows_answered)
        for kind, count in stats.tokens.items() if gauges.between is not None and gauges.between.places else ():
            _count(tokens, _of(gauges, kind=kind), count)
        _count(profiled, _of(gauges), stats.profiled.count)
        _count(profiling, _of(gauges), stats.profiled.ns / 1e9)
        for klass, ns in gauges.demand_ns.items():
            if ns or klass in stats.calls:  # the autoscaler asks for that of the default class, before any call too
                _count(demand, _of(gauges, **{"class": klass}), ns / 1e9)
    busy = _family("counter", "worker_busy_seconds", "Time each worker spent on units.")
    for worker, seconds in enumerate(snapshot.busy_s):
        _count(busy, {"worker": str(worker)}, seconds)
    yield from (answered, *([tokens] if tokens.samples else ()), profiled, profiling, demand, requests, batches, busy)
    if snapshot.energy is not None:
        energy = snapshot.energy()
        joules = _family("counter", "energy_joules", "Energy since start, by its source.")
        _count(joules, {"source": energy.source}, energy.joules)
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
        family = _family("gauge", name, text)
        for gauges in models:
            family.add_sample(family.name, _of(gauges), value(gauges))
        yield family
    yield from _by_class(models)
    staged = [gauges for gauges in models if gauges.between is not None]
    if staged:
        yield from _by_stage(staged)


def _by_class(models: list[Gauges]) -> Iterator[Metric]:
    """What waits. The oldest only of models that have had best-effort calls: others wait in turn."""
    rows = _family("gauge", "queue_length", "Rows that wait, by class.")
    oldest_text = "How long the oldest best-effort row has waited."
    oldest = _family("gauge", "best_effort_oldest_seconds", oldest_text)
    for gauges in models:
        for klass in gauges.shown():
            rows.add_sample(rows.name, _of(gauges, **{"class": klass}), gauges.waiting.get(klass, 0))
            if klass == BEST_EFFORT:
                oldest.add_sample(oldest.name, _of(gauges), gauges.oldest_ns / 1e9)
    yield rows
    if oldest.samples:
        yield oldest


def _by_stage(models: list[Gauges]) -> Iterator[Metric]:
    rows = _family("gauge", "activation_rows", "Rows kept between two stages.")
    nbytes = _family("gauge", "activation_bytes", "Memory of what is kept of them.")
    places = _family("gauge", "cache_places", "Rows that a model that writes has memory reserved for.")
    used = _family("gauge", "cache_places_used", "Rows that have begun to be written, and have not ended.")
    waiting = _family("gauge", "stage_queue_length", "Rows that wait, by stage.")
    running = _family("gauge", "stage_running_rows", "Rows that run, by stage.")
    for gauges in models:
        if gauges.between is not None:
            rows.add_sample(rows.name, _of(gauges), gauges.between.rows)
            nbytes.add_sample(nbytes.name, _of(gauges), gauges.between.nbytes)
            if gauges.between.places:
                places.add_sample(places.name, _of(gauges), gauges.between.places)
                used.add_sample(used.name, _of(gauges), gauges.between.rows)
        for stage, (wait, run) in enumerate(gauges.at_stages):
            waiting.add_sample(waiting.name, _of(gauges, stage=str(stage)), wait)
            running.add_sample(running.name, _of(gauges, stage=str(stage)), run)
    yield from (rows, nbytes, *((places, used) if places.samples else ()), waiting, running)


def _triton(models: Iterable[Gauges]) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, str, Callable[[Gauges], int]], ...] = (
        ("request_success", "counter", "Successful calls.", lambda g: g.stats.success.count),
        ("count", "counter", "Rows inferred.", lambda g: g.stats.rows),
        ("exec_count", "counter", "Batches run.", lambda g: g.stats.executions),
        ("pending_request_count", "gauge", "Calls admitted and not yet running.", lambda g: g.pending_calls),
        ("request_duration_us", "counter", "Time of calls, in all.", lambda g: g.stats.success.ns // 1000),
        ("queue_duration_us", "counter", "Time in the queue, in all.", lambda g: g.stats.queued.ns // 1000),
        ("compute_input_duration_us", "counter", "Gathering inputs.", lambda g: g.stats.parts.input_ns // 1000),
        ("compute_infer_duration_us", "counter", "Running models.", lambda g: g.stats.parts.infer_ns // 1000),
        ("compute_output_duration_us", "counter", "Copying outputs.", lambda g: g.stats.parts.output_ns // 1000),
    )
    for name, kind, text, value in rows:
        family = Metric(f"nv_inference_{name}", text, kind)
        for gauges in models:
            family.add_sample(family.name, _of(gauges), value(gauges))
        yield family
    failures = Metric("nv_inference_request_failure", "Failed calls.", "counter")
    for gauges in models:
        reasons = Counter(dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0))
        for outcome, count in gauges.stats.outcomes.items():
            if outcome != "ok":
                reasons[_TRITON_REASONS.get(outcome, "OTHER")] += count
        for reason, count in sorted(reasons.items()):
            failures.add_sample(failures.name, _of(gauges, reason=reason), count)
    yield failures
