"""Counting answers by the size of the batch they came from loses none, in one process or in several."""

from __future__ import annotations

import json
import math

from loadtest.batches import BatchTable, bracket, percentile


def test_brackets_are_powers_of_two_whose_names_sort() -> None:
    brackets = [bracket(size) for size in range(1, 65)]
    assert [name.strip() for name in dict.fromkeys(brackets)] == ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64"]
    assert [brackets[size - 1].strip() for size in (2, 3, 4, 5, 8, 9)] == ["2", "3-4", "3-4", "5-8", "5-8", "9-16"]
    assert brackets == sorted(brackets)


def test_percentile_of_counts_is_the_nearest_rank() -> None:
    counts = {3.0: 1, 1.0: 98, 2.0: 1}
    assert [percentile(counts, share) for share in (0.5, 0.98, 0.99, 1.0)] == [1.0, 1.0, 2.0, 3.0]
    assert math.isnan(percentile({}, 0.5))


def filled(names: list[str]) -> BatchTable:
    table = BatchTable()
    for number, name in enumerate(names):
        table.add(name, 1 + number % 2, float(number), f"queue;dur={number}, compute;dur=2, total;dur=3")
    return table


def test_rows_have_latencies_and_the_servers_means() -> None:
    table = filled(["a"] * 4)  # latencies 0 and 2 from batches of one, 1 and 3 from batches of two
    table.add("a", 2, 8.0, "")  # a server that says nothing of its time
    first, second = table.rows()
    assert first == {
        "request": "a", "batch": 1, "answers": 2, "mean_ms": 1.0, "p50_ms": 0.0, "p99_ms": 2.0,
        "server_queue_ms": 1.0, "server_compute_ms": 2.0, "server_total_ms": 3.0,
    }  # fmt: skip
    assert (second["answers"], second["mean_ms"], second["p99_ms"]) == (3, 4.0, 8.0)
    assert second["server_queue_ms"] == 2.0


def test_what_workers_send_adds_up_to_what_one_process_counts() -> None:
    names = ["a", "a", "b", "a", "b", "b", "b", "a"]
    together = BatchTable()
    for part in (names[:4], names[4:]):
        worker = filled(part)
        together.extend(json.loads(json.dumps(worker.take())))  # as it goes over the wire
        assert worker.rows() == []
    once = BatchTable()
    for part in (names[:4], names[4:]):
        once.extend(filled(part).take())
    assert together.rows() == once.rows()
    assert sum(row["answers"] for row in together.rows()) == len(names)
