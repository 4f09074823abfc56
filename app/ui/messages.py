"""Makes the messages to the live page. Pure functions of the snapshot, the plans and the index.

    hello    once: facts about the server, and how to read the other messages
    history  once: samples of the last minutes, and the last errors
    models   after changes: each version with its state and reason, inputs, batch times and tables
    tick     a few times a second: counters since start (the page takes differences), batches that ended, new errors
    bye      the reason why the stream ends

Counters are sent since start, so a slow page that misses a message loses nothing but batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.contract import CLASSES, IndexEntry, Served, TensorSpec
from app.http.codecs.files import takes_files
from app.http.examples import form_body
from app.observe.metrics import CallStats
from app.observe.snapshot import Gauges, Plan, Snapshot
from app.scheduler.types import Outcome, Unit
from app.ui.history import Machine

Fields = dict[str, Any]
Drawn = tuple[Any, ...]  # one batch, by FIELDS

#: The fields of a batch. Times are microseconds: `began` since the start of the Hub, `took` from there to its end.
#: `batches`: see `merge_batches`.
FIELDS = (
    "program", "stage", "steps", "worker", "rows", "size", "reason", "operation", "class", "began", "took", "compute",
    "error", "batches",
)  # fmt: skip
_WORKER, _BEGAN, _TOOK, _BATCHES = (FIELDS.index(name) for name in ("worker", "began", "took", "batches"))

_MOST_WAITING = 128  # waiting rows up to which a table is sent: beyond that its decision no longer changes


#: The input of the message `models`, which is sent again when this has changed: the index, and by model and version the
#: newest program of each and its plan.
ModelsState = tuple[list[IndexEntry], dict[tuple[str, str], tuple[int, Plan]]]


def models_state(index: Sequence[IndexEntry], snapshot: Snapshot) -> ModelsState:
    """The present state, without values that each tick has anyway."""
    return list(index), {(one.stats.model, one.stats.version): (one.program, one.plan) for one in snapshot.models}


def encoded(name: str, event: Fields) -> bytes:
    """One server-sent event. JSON has no line breaks, so `data` is one line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(event))


def hello(about: Mapping[str, Any], interval_ms: int) -> Fields:
    """`about`: facts about the server."""
    bounds = [float(bound) for bound, _ in CallStats().request.buckets()[:-1]]
    return {
        **about,
        "interval_ms": interval_ms,
        "latency_s": bounds,  # upper ends of the latency histogram's buckets; one more is beyond all
        "classes": list(CLASSES),
        "batch_fields": FIELDS,
    }


def models(now: ModelsState, ready: Sequence[Served]) -> Fields:
    """Everything known of every version, except the values that each tick has."""
    served = {(one.info.name, one.info.version): one for one in ready}
    (entries, plans), lines = now, []
    for entry in entries:
        key = (entry.name, entry.version)
        line: Fields = {**entry.as_dict()}
        if key in served and key in plans:
            line |= _described(served[key]) | _planned(*plans[key], served[key].info.batching.max_batch)
        lines.append(line)
    return {"models": lines}


def _described(served: Served) -> Fields:
    info = served.info
    batching = info.batching
    return {
        "platform": info.platform,
        "policy": batching.policy,
        "max_batch": batching.max_batch,
        "max_queue": batching.max_queue,
        "default_class": batching.default_class,
        "inputs": [_tensor(spec) for spec in info.client_inputs],
        "outputs": [_tensor(spec) for spec in info.outputs],
        "sends": _sends(served),
        "writes": served.model.writes,
        "example": form_body(served),
    }


def _sends(served: Served) -> str:
    """The kind of input that the form shows first: text, a file, or values."""
    if not takes_files(served):
        return "values"
    if served.info.client_inputs[0].datatype != "BYTES":
        return "file"  # which the model's own code decodes
    try:
        b"".join(() if served.example is None else served.example.arrays[0].reshape(-1)).decode()
    except UnicodeDecodeError:
        return "file"
    return "text"


def _tensor(spec: TensorSpec) -> Fields:
    return {"name": spec.name, "datatype": spec.datatype, "shape": ["rows", *spec.axes_shown()]}


def _planned(program: int, plan: Plan, max_batch: int) -> Fields:
    most = min(_MOST_WAITING, 2 * max_batch) + 1
    return {
        "program": program,
        "stages": plan.stages,
        "cell": plan.cell,
        "batch_ms": [time / 1e6 for time in plan.batch_ns],
        "origin": plan.origin,
        "loads": plan.loads,
        "tables": [table[:most] for table in plan.tables],
    }


def batch(unit: Unit, outcome: Outcome, began_ns: int, took_ns: int) -> Drawn:
    """The fields of a batch. The unit itself is not kept, because its rows refer to calls."""
    return (
        unit.program, unit.stage, outcome.steps, unit.worker, len(unit.rows), unit.size, unit.reason,
        unit.operation, unit.klass.value, began_ns // 1000, took_ns // 1000, outcome.compute_ns // 1000, outcome.error,
        1,
    )  # fmt: skip


def merge_batches(batches: Sequence[Drawn], most: int, span_us: int) -> Sequence[Drawn]:
    """The batches of the last `span_us`, merged into at most about `most` blocks that cover the same time.

    If there are more batches, those that a worker began within one slice of time become one block: with the fields of
    the first, the end of the last, and their number.
    """
    if len(batches) <= most:
        return batches
    slice_us = max(1, span_us * len({one[_WORKER] for one in batches}) // most)
    blocks: dict[tuple[int, int], list[Any]] = {}
    for one in batches:
        block = blocks.setdefault((one[_WORKER], one[_BEGAN] // slice_us), [*one[:_BATCHES], 0])
        block[_TOOK] = max(block[_TOOK], one[_BEGAN] + one[_TOOK] - block[_BEGAN])
        block[_BATCHES] += 1
    return [tuple(block) for block in blocks.values()]


def tick(
    at_us: int, ready: str | None, snapshot: Snapshot, batches: Sequence[Drawn], errors: list[Fields], machine: Machine
) -> Fields:
    """`at_us`: now, on the clock of the batches. `ready`: why the server is not ready, or None. `errors`: new ones."""
    return {
        "at": at_us,
        "not_ready": ready,
        "busy_s": snapshot.busy_s,
        "models": list(map(_counted, snapshot.models)),
        "batches": batches,
        "errors": errors,
        "machine": list(machine),
    }


def _counted(gauges: Gauges) -> Fields:
    stats = gauges.stats
    spent, parts = stats.spent, stats.parts
    formed: Counter[str] = Counter()
    for (_, reason), count in stats.batches.items():
        formed[str(reason)] += count
    return {
        "program": gauges.program,
        "name": stats.model,
        "version": stats.version,
        "waiting": gauges.waiting,
        "preferred": gauges.preferred,
        "slots": gauges.slots_used,
        "scale": gauges.scale,
        "level": gauges.level,
        "outcomes": {klass: calls.outcomes for klass, calls in stats.calls.items()},
        "latency": [sum(counts) for counts in zip(*(one.request.counts for one in stats.calls.values()), strict=True)],
        # calls with an answer and all their nanoseconds; the parts are of calls that ran, whether answered or not
        "calls": [*spent["success"].values()],
        "queue": [*spent["queue"].values()],
        "compute": [parts.input_ns, parts.infer_ns, parts.output_ns],
        "rows": stats.rows,
        "executions": stats.executions,
        "formed": formed,
        "at_stages": gauges.at_stages,
    }
