"""What is counted, and how it reads: Prometheus text under both name sets, and Triton's statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.contract import Answer, IndexEntry, Klass
from app.errors import codes
from app.lifecycle import Lifecycle
from app.observe.metrics import Histogram, ModelStats
from app.observe.prometheus import of_server, render
from app.observe.snapshot import ActivationMemory, Gauges, Snapshot
from app.scheduler.types import Formed

MS = 1_000_000
BEFORE_MODEL = {"unauthorized", "not_found", "method_not_allowed"}  # these count for no model


PARTS = (1 * MS, 5 * MS, 2 * MS)


def used() -> ModelStats:
    """Two calls that went well, in one batch of three rows, and one of each kind of failure."""
    stats = ModelStats("echo", "1")
    stats.whole[Klass.REALTIME].ran(0, "full", "", 3, PARTS)
    for rows in (1, 2):
        stats.call_answered("ok", 13 * MS, Klass.REALTIME, Answer([], 4 * MS, PARTS, 3), rows)
    for outcome in ("queue_full", "deadline_exceeded", "client_gone", "model_failed", "bad_request"):
        stats.call_answered(outcome, 1 * MS, Klass.REALTIME)
    return stats


def gauges_of(stats: ModelStats, **more: Any) -> Gauges:
    demand_ns = {"realtime": 0, "best_effort": 0, **dict.fromkeys(stats.calls, 1500 * MS)}
    given = Gauges(
        stats, pending_calls=2, preferred=4, rate=12.5, slots_used=9, waiting={"realtime": 7, "best_effort": 0},
        oldest_ns=0, demand_ns=demand_ns,
    )  # fmt: skip
    return replace(given, **more)


def samples(stats: ModelStats, **more: Any) -> dict[str, float]:
    """Every sample of a rendered page, written `name{label,...}`. `more`: fields of the gauges."""
    text, content_type = render(Snapshot([gauges_of(stats, **more)], [1.5]))
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(v for k, v in sorted(sample.labels.items()) if k not in ("model", "version"))
            if sample.name.startswith(("starling_", "nv_")):
                # the parser appends _total to every counter; Triton's have none
                name = sample.name.removesuffix("_total") if sample.name.startswith("nv_") else sample.name
                found[f"{name}{{{labels}}}"] = sample.value
                if not sample.name.startswith(("starling_worker_busy", "starling_loop_lag", "starling_consistency")):
                    assert (sample.labels["model"], sample.labels["version"]) == ("echo", "1")
    return found


def shown(expected: dict[str, float], stats: ModelStats, **more: Any) -> dict[str, float]:
    """The samples, which have these among them."""
    found = samples(stats, **more)
    assert {name: found.get(name) for name in expected} == expected
    return found


def test_our_names_and_tritons() -> None:
    text, _ = render(Snapshot([gauges_of(used())], []))
    assert b'\nnv_inference_request_success{model="echo",version="1"} 2.0\n' in text  # without a suffix
    expected = {
        "starling_request_duration_seconds_count{realtime}": 6, "starling_refusal_duration_seconds_count{realtime}": 1,
        "starling_rows_answered_total{}": 3, "starling_queue_duration_seconds_count{realtime}": 2,
        "starling_queue_duration_seconds_sum{realtime}": 0.008, "starling_compute_duration_seconds_count{realtime}": 1,
        "starling_compute_duration_seconds_sum{realtime}": 0.008, "starling_batch_size_bucket{realtime,2}": 0,
        "starling_batch_size_bucket{realtime,4}": 1, "starling_batch_size_bucket{realtime,+Inf}": 1,
        "starling_batch_size_sum{realtime}": 3, "starling_requests_total{realtime,ok}": 2,
        "starling_requests_total{realtime,model_failed}": 1, "starling_batches_total{realtime,full,0}": 1,
        "starling_queue_length{realtime}": 7, "starling_preferred_batch_size{}": 4, "starling_arrival_rate{}": 12.5,
        "starling_pool_slots_used{}": 9, "starling_demand_seconds_total{realtime}": 1.5,
        "starling_demand_seconds_total{best_effort}": 0, "starling_worker_busy_seconds_total{0}": 1.5,
        "nv_inference_request_success{}": 2, "nv_inference_request_failure{REJECTED}": 2,
        "nv_inference_request_failure{CANCELED}": 1, "nv_inference_request_failure{BACKEND}": 1,
        "nv_inference_request_failure{OTHER}": 1, "nv_inference_count{}": 3, "nv_inference_exec_count{}": 1,
        "nv_inference_pending_request_count{}": 2, "nv_inference_request_duration_us{}": 26_000,
        "nv_inference_queue_duration_us{}": 8_000, "nv_inference_compute_input_duration_us{}": 2_000,
        "nv_inference_compute_infer_duration_us{}": 10_000, "nv_inference_compute_output_duration_us{}": 4_000,
    }  # fmt: skip
    shown(expected, used())


def test_no_series_is_there_twice_while_a_version_is_replaced() -> None:
    new, other = ModelStats("echo", "1"), ModelStats("echo", "2")
    text, _ = render(Snapshot([gauges_of(new), gauges_of(other), gauges_of(used())], []))
    series = [line.rpartition(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'starling_rows_answered_total{model="echo",version="1"} 0.0' in text.decode()


@pytest.mark.parametrize("stages", [0, 2])
def test_no_series_appears_with_the_first_call(stages: int) -> None:
    """`increase` does not see the step with which a series appears, nor does a ratio whose divisor is not there."""
    stats = ModelStats("echo", "1", stages)
    first = samples(stats, workers=2)
    assert not any(math.isnan(value) for value in first.values())
    for klass in Klass:
        for outcome in ("ok", *codes()):
            assert outcome in BEFORE_MODEL or first[f"starling_requests_total{{{klass!s},{outcome}}}"] == 0
            if outcome not in BEFORE_MODEL:
                stats.call_answered(outcome, MS, klass)
        for number, reason in enumerate(Formed):
            for batches, operation in [(stats.whole[klass], ""), *((one[klass], "new") for one in stats.stages)]:
                batches.ran(number % 2, reason, operation, 3, PARTS)
        stats.call_answered("ok", 20 * MS, klass, Answer([], 4 * MS, PARTS, 1), 1)
        if stages:
            stats.first_piece(MS, klass)
            stats.next_piece(MS, 2, klass)
    assert samples(stats, workers=2).keys() == first.keys()
    kinds = ("request", "queue", "compute") + (("first", "token") if stages else ())
    assert {name.split("_")[1] for name in first if "_bucket{" in name} == {*kinds, "refusal", "batch"}


def test_calls_by_class() -> None:
    stats = used()
    waits = {"starling_queue_length{best_effort}": 3, "starling_best_effort_oldest_seconds{}": 0.25}  # none has ended
    expected = {**waits, "starling_request_duration_seconds_count{best_effort}": 0}
    shown(expected, stats, waiting={"realtime": 0, "best_effort": 3}, oldest_ns=250 * MS)

    stats.call_answered("ok", 20 * MS, Klass.BEST_EFFORT, Answer([], 6 * MS, PARTS, 1), 1)
    expected = {
        "starling_requests_total{best_effort,ok}": 1, "starling_requests_total{realtime,ok}": 2,
        "starling_request_duration_seconds_sum{best_effort}": 0.02,
        "starling_queue_duration_seconds_count{best_effort}": 1, **dict.fromkeys(waits, 0),
        "nv_inference_request_success{}": 3, "nv_inference_queue_duration_us{}": 14_000,  # Triton knows no classes
    }  # fmt: skip
    shown(expected, stats)


def test_batches_by_class_and_by_stage() -> None:
    stats = ModelStats("echo", "1", 2)
    stats.stages[0][Klass.REALTIME].ran(0, "idle", "new", 3, (1 * MS, 2 * MS, 0))
    stats.stages[1][Klass.BEST_EFFORT].ran(0, "full", "on", 4, (0, 2 * MS, 1 * MS))
    stats.stages[1][Klass.REALTIME].ran(0, "full", "on", 4, (0, 2 * MS, 1 * MS))
    expected: dict[str, float] = {
        "starling_batches_total{realtime,new,idle,0,0}": 1, "starling_batches_total{best_effort,on,full,1,0}": 1,
        "starling_batches_total{realtime,on,full,1,0}": 1, "starling_batch_size_sum{realtime,0}": 3,
        "starling_batch_size_sum{best_effort,1}": 4, "starling_batch_size_sum{best_effort,0}": 0,
        "starling_compute_duration_seconds_sum{best_effort,1}": 0.003,
    }  # fmt: skip
    shown(expected, stats)
    stats.wrote(5, 3)
    expected = {
        "starling_tokens_total{prompt}": 5, "starling_tokens_total{generated}": 3, "starling_cache_places{}": 8,
        "starling_cache_places_used{}": 2, "starling_activation_bytes{}": 64, "starling_stage_running_rows{0}": 2,
    }  # fmt: skip
    shown(expected, stats, activations=ActivationMemory(2, 64, places=8), at_stages=[(1, 2)])
    found = shown({"starling_activation_rows{}": 2}, stats, activations=ActivationMemory(2, 64))
    assert "starling_tokens_total{prompt}" not in found, "it writes no texts"
    assert stats.batches == {(0, "idle"): 1, (0, "full"): 2}
    assert stats.stages[1].operations() == {"on": 2}
    assert {rows: parts.count for rows, parts in stats.stages[1].by_size().items()} == {4: 2}


def test_what_the_server_is_and_how() -> None:
    lifecycle = Lifecycle()
    entries = [IndexEntry("echo", "1", "READY"), IndexEntry("m", "2", "LOADING", required=True)]
    lifecycle.catalog = SimpleNamespace(index=lambda: entries)  # type: ignore[assignment]
    lifecycle.connections, lifecycle.malformed, lifecycle.lost_lines = lambda: 3, lambda: 2, lambda: 4
    build = {"version": "1.2.3", "device": 'a "fast" one'}
    pauses = SimpleNamespace(count=4, seconds=0.5, longest_s=0.25)
    server = of_server(lifecycle, build, 7, {"bad_request": 5}, pauses)  # type: ignore[arg-type]
    text, _ = render(Snapshot([], []), server)
    lines = {
        'starling_build_info{device="a \\"fast\\" one",version="1.2.3"} 1.0', "starling_live 1.0", "starling_ready 0.0",
        'starling_model_ready{model="echo",version="1"} 1.0', 'starling_model_ready{model="m",version="2"} 0.0',
        "starling_open_connections 3.0", "starling_held_bytes 7.0", "starling_lost_log_lines_total 4.0",
        "starling_collections_total 4.0", "starling_collection_seconds_total 0.5",
        "starling_collection_longest_seconds 0.25", 'starling_rejected_total{reason="bad_request"} 5.0',
        'starling_rejected_total{reason="malformed"} 2.0', 'starling_rejected_total{reason="not_found"} 0.0',
    }  # fmt: skip
    assert lines - {*text.decode().splitlines()} == set()
    assert b"\nprocess_cpu_seconds_total " in text


def test_statistics_by_class() -> None:
    stats = used()
    assert list(gauges_of(stats).classes()) == ["realtime"]
    stats.call_answered("queue_full", 1 * MS, Klass.BEST_EFFORT)
    classes = gauges_of(stats, waiting={"realtime": 0, "best_effort": 5}, oldest_ns=30 * MS).classes()
    assert classes["realtime"]["success"] == {"count": 2, "ns": 26 * MS}
    assert "oldest_ms" not in classes["realtime"]
    none = {"count": 0, "ns": 0}
    assert classes["best_effort"] == {
        "queue_length": 5, "oldest_ms": 30.0, "success": none, "fail": {"count": 1, "ns": 1 * MS}, "queue": none,
    }  # fmt: skip


def test_refusals_are_in_no_latency_of_answers() -> None:
    """Refused in no time, they would make every percentile look well."""
    stats = ModelStats("echo", "1")
    for outcome in ("queue_full", "too_many_connections", "deadline_unreachable", "not_ready"):
        stats.call_answered(outcome, 1 * MS, Klass.REALTIME)
    stats.call_answered("ok", 300 * MS, Klass.REALTIME)
    found = samples(stats)
    assert found["starling_request_duration_seconds_bucket{realtime,0.25}"] == 0
    assert found["starling_request_duration_seconds_count{realtime}"] == 1
    assert found["starling_refusal_duration_seconds_bucket{realtime,0.001}"] == 4


def test_tritons_statistics() -> None:
    shown = used().triton()
    assert (shown["name"], shown["version"], shown["inference_count"], shown["execution_count"]) == ("echo", "1", 3, 1)
    expected = {
        "success": {"count": 2, "ns": 26 * MS}, "fail": {"count": 5, "ns": 5 * MS}, "queue": {"count": 2, "ns": 8 * MS},
        "compute_infer": {"count": 2, "ns": 10 * MS}, "cache_hit": {"count": 0, "ns": 0},
    }  # fmt: skip
    assert {name: shown["inference_stats"][name] for name in expected} == expected
    (batch,) = shown["batch_stats"]
    assert (batch["batch_size"], batch["compute_input"]) == (3, {"count": 1, "ns": 1 * MS})
    assert shown["last_inference"] > 1_600_000_000_000  # milliseconds since 1970


def test_bounds_of_a_histogram_are_inclusive() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 2.5):
        histogram.observe(value)
    assert histogram.buckets() == [("1", 2), ("2", 4), ("+Inf", 5)]
    assert histogram.total == 7.5
