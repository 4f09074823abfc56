"""Renders the metrics as Prometheus text, under our names and Triton's.

Every series of a model is there from its load, at 0, because `rate` and `increase` do not see the step with which a
series appears: the first failure would go unnoticed. When the model is unloaded its series end.

It runs on the event loop. The text is written here, but for the process's own metrics, because prometheus_client takes
three times as long: 50 models have 9,000 lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.collector import Collector
from app.contract import CLASSES
from app.errors import codes
from app.lifecycle import Lifecycle
from app.observe.metrics import OUTCOMES, Histogram
from app.observe.snapshot import ActivationMemory, Gauges, Snapshot
from app.scheduler.types import Formed, Operation

#: Upper bounds of the buckets that are shown; the counts are finer.
_SECONDS = frozenset(map(str, (0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1, 2.5, 10, "+Inf")))
_REFUSAL_SECONDS = frozenset(map(str, (0.001, 0.01, 0.1, 1, "+Inf")))
_PROCESS = CollectorRegistry()
for _collector in (ProcessCollector, PlatformCollector):
    _collector(registry=_PROCESS)
_FAULTS = "Ticks at which rows, units or slots were left although no call was there: a fault of the server."
#: Triton knows four reasons: REJECTED (by the queue), CANCELED, BACKEND (the model) and OTHER.
_TRITON_REASONS = {
    "queue_full": "REJECTED",
    "deadline_unreachable": "REJECTED",
    "deadline_exceeded": "REJECTED",
    "client_gone": "CANCELED",
    "model_failed": "BACKEND",
}


#: A sample: labels besides model and version, and the value.
Sample = tuple[dict[str, str], float]
#: A line of the text: the end of the name behind the family's, labels and value.
TextLine = tuple[str, dict[str, str], float]
#: A family of metrics per model: kind, name, help, and a function that returns the samples of one model, or its value.
Family = tuple[str, str, str, Callable[[Gauges], Iterable[Sample] | float]]


def render(snapshot: Snapshot, server: Iterable[str] = ()) -> tuple[bytes, str]:
    """Prometheus text and its content type. `server`: the families of the server, see `of_server`."""
    # While a version is replaced there are two. A series may stand once, as that of the one that serves.
    models = list({(one.stats.model, one.stats.version): one for one in reversed(snapshot.models)}.values())
    busy = (({"worker": str(worker)}, seconds) for worker, seconds in enumerate(snapshot.busy_s))
    families = (
        *server,
        _family("gauge", "loop_lag_seconds", "How late the event loop turned to its last tick.", snapshot.lag_s),
        _family("counter", "consistency_faults", _FAULTS, snapshot.faults),
        *_histograms(models),
        *_of_models(_OURS, models),
        _family("counter", "worker_busy_seconds", "Time each worker spent on units.", *busy),
        *_of_models(_TRITON, models, "nv_inference_"),
    )
    return "".join(families).encode() + generate_latest(_PROCESS), CONTENT_TYPE_LATEST


def _text(kind: str, name: str, text: str, lines: Iterable[TextLine]) -> str:
    """A family. Labels are sorted for better compression."""
    head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    return head + "".join(
        [f"{name}{end}{_label_text(tuple(labels.items()))} {float(value)!r}\n" for end, labels, value in lines]
    )


@lru_cache(1 << 14)
def _label_text(labels: tuple[tuple[str, str], ...]) -> str:
    """Cached, because a page has the same labels as the one before."""
    inner = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(labels)])
    return f"{{{inner}}}" if labels else ""


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _family(kind: str, name: str, text: str, *samples: Sample | float, prefix: str = "starling_") -> str:
    """A family of these samples. A number is a sample without labels. Triton's counters do not end in `_total`."""
    end = "_total" if kind == "counter" and prefix == "starling_" else ""
    lines: list[TextLine] = [("", *sample) if isinstance(sample, tuple) else ("", {}, sample) for sample in samples]
    return _text(kind, f"{prefix}{name}{end}", text, lines)


def _of_models(families: Iterable[Family], models: list[Gauges], prefix: str = "starling_") -> Iterator[str]:
    """The families that have samples."""
    for kind, name, text, samples in families:
        found = []
        for one in models:
            given = samples(one)
            of_one = given if isinstance(given, Iterable) else [({}, given)]
            found += [(_of(one, **labels), value) for labels, value in of_one]
        if found:
            yield _family(kind, name, text, *found, prefix=prefix)


def _of(gauges: Gauges, **more: str) -> dict[str, str]:
    """The labels of a model."""
    return {"model": gauges.stats.model, "version": gauges.stats.version, **more}


def of_server(
    lifecycle: Lifecycle, build: Mapping[str, str], held_bytes: int, rejected: Mapping[str, int], collector: Collector
) -> Iterator[str]:
    """The families of the server: probes, models of the index, connections and bodies. `build`: labels of versions.

    `held_bytes`: of bodies and unread answers. `rejected`: by error code, requests that belong to no model.
    """
    yield _family("gauge", "build_info", "1; the labels say what runs.", (dict(build), 1))
    yield _family("gauge", "live", "What the liveness probe says: 1 is well.", lifecycle.live() is None)
    yield _family("gauge", "ready", "What the readiness probe says: 1 is ready.", lifecycle.ready() is None)
    models = (({"model": one.name, "version": one.version}, one.serves) for one in lifecycle.models())
    yield _family("gauge", "model_ready", "1 where the model can be called.", *models)
    yield _family("gauge", "open_connections", "Connections that are open.", lifecycle.connections())
    yield _family("gauge", "held_bytes", "Bytes of bodies and unread answers that are held.", held_bytes)
    if (expires := lifecycle.certificate_expires()) is not None:
        text = "When the certificate is no longer valid, in seconds since the epoch."
        yield _family("gauge", "certificate_expiry_seconds", text, expires)
    text = "Lines to standard output or error that could not be written."
    yield _family("counter", "lost_log_lines", text, lifecycle.lost_lines())
    text = "Garbage collections, in which nothing else runs."
    yield _family("counter", "collections", text, collector.count)
    yield _family("counter", "collection_seconds", "What they took, all together.", collector.seconds)
    yield _family("gauge", "collection_longest_seconds", "What the longest of them took.", collector.longest_s)
    counts = {**dict.fromkeys(codes(), 0), **rejected, "malformed": lifecycle.malformed()}
    text = "Requests that count for no model, by why they were refused."
    yield _family("counter", "rejected", text, *(({"reason": one}, count) for one, count in sorted(counts.items())))


def _histograms(models: list[Gauges]) -> Iterator[str]:
    for name, text, bounds in (
        ("request_duration_seconds", "From arrival to encoded answer, of calls that were not refused.", _SECONDS),
        ("refusal_duration_seconds", "From arrival to encoded answer, of calls that were refused.", _REFUSAL_SECONDS),
        ("queue_duration_seconds", "From submission to the end of the batch, less its computing, per call.", _SECONDS),
        ("first_token_seconds", "From arrival to the first piece of a text, of calls that are streamed.", _SECONDS),
        ("token_interval_seconds", "Between two tokens of a text that is streamed.", _SECONDS),
    ):
        kind, lines = name.partition("_")[0], list[TextLine]()
        for gauges in models:
            for klass, calls in gauges.stats.by_class.items():
                histogram: Histogram = getattr(calls, kind)
                if kind in ("first", "token") and not gauges.stats.stages and not any(histogram.counts):
                    continue  # only models that run by steps have pieces
                lines += _buckets(histogram, bounds, _of(gauges, **{"class": str(klass)}))
        yield _text("histogram", f"starling_{name}", text, lines)
    compute, sizes = list[TextLine](), list[TextLine]()
    for gauges in models:
        for labels, batches in gauges.stats.by_stage():
            compute += _buckets(batches.compute, _SECONDS, _of(gauges, **labels))
            sizes += _buckets(batches.sizes(), None, _of(gauges, **labels))
    yield _text("histogram", "starling_compute_duration_seconds", "Gather, model and copy out, per batch.", compute)
    yield _text("histogram", "starling_batch_size", "Rows per batch, padding apart.", sizes)


def _buckets(histogram: Histogram, bounds: frozenset[str] | None, labels: dict[str, str]) -> Iterator[TextLine]:
    """The lines of a histogram. `bounds`: buckets to show; None: all."""
    for bound, seen in histogram.buckets():
        if bounds is None or bound in bounds:
            yield "_bucket", {**labels, "le": bound}, seen
    yield "_count", labels, sum(histogram.counts)
    yield "_sum", labels, histogram.total


def _stage(place: int) -> Callable[[Gauges], Iterable[Sample]]:
    """One sample per stage: rows that wait (`place` 0) or run (1)."""
    return lambda gauges: [({"stage": str(stage)}, rows[place]) for stage, rows in enumerate(gauges.at_stages)]


def _kept(value: Callable[[ActivationMemory], float], *, places: bool = False) -> Callable[[Gauges], Iterable[Sample]]:
    """One sample of a model in stages; with `places`, only of a model that generates text."""
    return lambda gauges: [({}, value(between)) for between in _activations(gauges) if between.places or not places]


def _activations(gauges: Gauges) -> list[ActivationMemory]:
    return [] if gauges.activations is None else [gauges.activations]


def _tokens(gauges: Gauges) -> Iterator[Sample]:
    if any(between.places for between in _activations(gauges)):
        yield from _labelled("kind", gauges.stats.tokens)


def _labelled(label: str, counts: Mapping[str, float]) -> Iterator[Sample]:
    yield from (({label: name}, count) for name, count in counts.items())


def _requests(gauges: Gauges) -> Iterator[Sample]:
    for klass, calls in gauges.stats.by_class.items():
        for outcome, count in {**dict.fromkeys(OUTCOMES, 0), **calls.outcomes}.items():
            yield {"class": str(klass), "outcome": outcome}, count


def _batches(gauges: Gauges) -> Iterator[Sample]:
    operations = list(Operation) if gauges.stats.stages else [""]
    for labels, of_class in gauges.stats.by_stage():
        for worker, reason, operation in product(range(gauges.workers), Formed, operations):
            more = {"operation": str(operation)} if operation else {}
            count = of_class.batches[worker, reason, operation]
            yield {**labels, **more, "worker": str(worker), "reason": str(reason)}, count


def _failures(gauges: Gauges) -> Iterator[Sample]:
    reasons = Counter(dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0))
    for outcome, count in gauges.stats.outcomes.items():
        if outcome != "ok":
            reasons[_TRITON_REASONS.get(outcome, "OTHER")] += count
    return _labelled("reason", dict(sorted(reasons.items())))


_OURS: tuple[Family, ...] = (
    ("counter", "rows_answered", "Rows of calls that were answered.", lambda g: g.stats.rows_answered),
    ("counter", "tokens", "Tokens of rows that have ended, of models that write texts.", _tokens),
    ("counter", "profile_batches", "Batches that measured an idle model; in no other figure.",
     lambda g: sum(g.stats.profiled.counts)),
    ("counter", "profile_seconds", "What they took to compute.", lambda g: g.stats.profiled.total),
    ("counter", "demand_seconds", "Device time that calls asked for, refused ones too, at the rate of full batches.",
     lambda g: [({"class": klass}, g.demand_ns.get(klass, 0) / 1e9) for klass in CLASSES]),
    ("counter", "requests", "Calls by class and by how they ended.", _requests),
    ("counter", "batches", "Batches by class, worker and why they were formed.", _batches),
    ("gauge", "preferred_batch_size", "The batch size whose throughput just exceeds the arrival rate.",
     lambda g: g.preferred),
    ("gauge", "arrival_rate", "Rows per second that came over the last window, those refused included.",
     lambda g: g.rate),
    ("gauge", "pool_slots_used", "Input slots in use.", lambda g: g.slots_used),
    ("gauge", "batch_time_alpha_seconds", "Batch time as a line: its value at 0 rows.",
     lambda g: g.regression[0] / 1e9),
    ("gauge", "batch_time_beta_seconds", "Batch time as a line: seconds per row.", lambda g: g.regression[1] / 1e9),
    ("gauge", "batch_time_residual_seconds", "Root mean square error of that line.", lambda g: g.regression[2] / 1e9),
    ("gauge", "queue_length", "Rows that wait, by class.",
     lambda g: [({"class": klass}, g.waiting.get(klass, 0)) for klass in CLASSES]),
    ("gauge", "best_effort_oldest_seconds", "How long the oldest best-effort row has waited.",
     lambda g: g.oldest_ns / 1e9),
    ("gauge", "activation_rows", "Rows kept between two stages.", _kept(lambda one: one.rows)),
    ("gauge", "activation_bytes", "Memory of what is kept of them.", _kept(lambda one: one.nbytes)),
    ("gauge", "cache_places", "Rows that a model that writes has memory reserved for.",
     _kept(lambda one: one.places, places=True)),
    ("gauge", "cache_places_used", "Rows that have begun to be written, and have not ended.",
     _kept(lambda one: one.rows, places=True)),
    ("gauge", "stage_queue_length", "Rows that wait, by stage.", _stage(0)),
    ("gauge", "stage_running_rows", "Rows that run, by stage.", _stage(1)),
)  # fmt: skip
_TRITON: tuple[Family, ...] = (
    ("counter", "request_success", "Successful calls.", lambda g: g.stats.outcomes["ok"]),
    ("counter", "count", "Rows inferred.", lambda g: g.stats.rows),
    ("counter", "exec_count", "Batches run.", lambda g: g.stats.executions),
    ("gauge", "pending_request_count", "Calls admitted and not yet running.", lambda g: g.pending_calls),
    ("counter", "request_duration_us", "Time of calls, in all.", lambda g: g.stats.spent["success"]["ns"] // 1000),
    ("counter", "queue_duration_us", "Time in the queue, in all.", lambda g: g.stats.spent["queue"]["ns"] // 1000),
    ("counter", "compute_input_duration_us", "Gathering inputs.", lambda g: g.stats.parts.input_ns // 1000),
    ("counter", "compute_infer_duration_us", "Running models.", lambda g: g.stats.parts.infer_ns // 1000),
    ("counter", "compute_output_duration_us", "Copying outputs.", lambda g: g.stats.parts.output_ns // 1000),
    ("counter", "request_failure", "Failed calls.", _failures),
)  # fmt: skip
