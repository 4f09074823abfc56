"""What a run finds beside Locust's own statistics, gathered from all its processes and told in the end.

Imported by locustfile.py: the listeners here are of Locust's events.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
from locust import events, stats
from locust.runners import WorkerRunner

from loadtest import shapes
from loadtest.batches import BatchTable, percentile

log = logging.getLogger("loadtest")

PROGRESS_S = 5.0


@dataclass
class Found:
    """`wrong` counts answers that no overload explains, `busy_percent` is the most of a core that Locust used."""

    batches: BatchTable = field(default_factory=BatchTable)
    wrong: int = 0
    busy_percent: float = 0.0


#: Of the run of this process. Locust has one at a time.
found = Found()


def reset() -> None:
    """Begin anew, as Locust's statistics do when a test starts."""
    found.batches, found.wrong, found.busy_percent = BatchTable(), 0, 0.0


def counted(runner: Any) -> shapes.Totals:
    total = runner.stats.total
    return shapes.Totals(total.num_requests, total.num_failures, dict(total.response_times))


def report_progress(runner: Any) -> None:
    """A line every few seconds while a load without a page runs: of these seconds alone."""
    before = counted(runner)
    while True:
        gevent.sleep(PROGRESS_S)
        after = counted(runner)
        new = after.since(before)
        before = after
        log.info(
            "%d users, %.0f requests/s, p99 %.1f ms, %d failed; %d requests so far",
            runner.user_count, new.requests / PROGRESS_S, percentile(new.latencies_ms, 0.99), new.failures,
            after.requests,
        )  # fmt: skip


@events.usage_monitor.add_listener
def note_usage(cpu_usage: float, **_: Any) -> None:
    found.busy_percent = max(found.busy_percent, cpu_usage)


@events.report_to_master.add_listener
def send_found(data: dict[str, Any], **_: Any) -> None:
    data["found"] = (found.batches.take(), found.wrong, found.busy_percent)
    found.wrong = 0


@events.worker_report.add_listener
def add_found(data: dict[str, Any], **_: Any) -> None:
    taken, wrong, busy_percent = data["found"]
    found.batches.extend(taken)
    found.wrong += wrong
    found.busy_percent = max(found.busy_percent, busy_percent)


def ramp_of(environment: Any) -> shapes.Ramp | None:
    return getattr(environment.shape_class, "ramp", None)


@events.quitting.add_listener
def decide_exit_code(environment: Any, **_: Any) -> None:
    """Locust's own is 1 where anything failed.

    A ramp is meant to fail: there only wrong answers count. A run without one answer has shown nothing, and is no
    success, unless there is a page: nobody may have started it.
    """
    if environment.process_exit_code is not None or isinstance(environment.runner, WorkerRunner):
        return
    ramp = ramp_of(environment)
    if environment.stats.num_requests == 0 and environment.parsed_options.headless:
        log.error("no request was answered")
        environment.process_exit_code = 1
    elif ramp is not None and ramp.levels:
        answered = environment.stats.num_requests > environment.stats.num_failures
        broken = found.wrong or environment.runner.exceptions or not answered
        environment.process_exit_code = 1 if broken else 0


def requests_of(counted: stats.RequestStats) -> list[dict[str, Any]]:
    """Locust's entries and their total as they are in the end; its CSV files lack the last second."""
    return [
        {
            "type": entry.method or None,
            "name": entry.name,
            "requests": entry.num_requests,
            "failures": entry.num_failures,
            "rate": round(entry.total_rps, 3),
            "mean_ms": round(entry.avg_response_time, 3),
            **{f"p{share * 100:g}_ms": entry.get_response_time_percentile(share) for share in (0.5, 0.9, 0.99, 0.999)},
        }
        for entry in [*stats.sort_stats(counted.entries), counted.total]
    ]


@events.init.add_listener
def report_at_the_end(environment: Any, runner: Any, **_: Any) -> None:
    """Print progress, and after Locust's own tables what was found; write it down."""
    if isinstance(runner, WorkerRunner):
        return
    if environment.parsed_options.headless:
        gevent.spawn(report_progress, runner)

    @environment.events.quit.add_listener
    def report(**_: Any) -> None:
        ramp = ramp_of(environment)
        print(found.batches.text())
        if ramp is not None:
            print(ramp.verdict())
            if found.busy_percent >= shapes.BUSY_PERCENT:
                print(f"ramp: Locust used {found.busy_percent:.0f} % of its core: the limit may be its own")
        if environment.parsed_options.results:
            results = {
                "requests": requests_of(runner.stats),
                "batches": found.batches.rows(),
                "ramp": None if ramp is None else ramp.as_dict(),
            }
            Path(environment.parsed_options.results).write_text(json.dumps(results, indent=1) + "\n")
