"""Latency by batch size: what the answers' headers say of where the time went, counted by the batch they came from.

`X-Batch-Size` is the size of the batch that a request ran in, `Server-Timing` how long it waited and was computed
(docs/protocol.md). A server without these headers has no such table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PHASES = ("queue", "compute", "total")


def bracket(size: int) -> str:
    """1, 2, 3-4, 5-8, 9-16, ...: the powers of two keep a report short, and padding keeps it in order."""
    high = 1 << (size - 1).bit_length()
    low = high // 2 + 1
    return f"{high:2}" if low >= high else f"{low:2}-{high}"


def timings(header: str) -> dict[str, float]:
    """Milliseconds by name from a Server-Timing header; what has no duration is left out."""
    found = {}
    for entry in header.split(","):
        name, _, duration = entry.strip().partition(";dur=")
        try:
            found[name] = float(duration)
        except ValueError:
            continue
    return found


def rounded(latency_ms: float) -> float:
    """0.1 ms below 100 ms, two digits above.

    Locust's own rounding, to whole milliseconds, makes one bar of all a fast server's answers.
    """
    if latency_ms < 100:
        return round(latency_ms, 1)
    digits = len(str(int(latency_ms))) - 2
    return float(round(latency_ms, -digits))


def percentile(counts: Mapping[float, int], share: float) -> float:
    """The least value that at least `share` (0 to 1) of the counted do not exceed; NaN of none."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    return float("nan")


@dataclass(slots=True)
class Cell:
    """The answers of one kind of request from batches of one size: the client's latencies, and sums of the phases."""

    latencies_ms: dict[float, int] = field(default_factory=lambda: defaultdict(int))
    sum_ms: float = 0.0
    timed: int = 0
    phases_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def count(self) -> int:
        return sum(self.latencies_ms.values())

    def add(self, latency_ms: float, times: Mapping[str, float]) -> None:
        self.latencies_ms[rounded(latency_ms)] += 1
        self.sum_ms += latency_ms
        if all(phase in times for phase in PHASES):
            self.timed += 1
            for phase in PHASES:
                self.phases_ms[phase] += times[phase]

    def extend(self, other: Mapping[str, Any]) -> None:
        for latency_ms, count in other["latencies_ms"]:
            self.latencies_ms[latency_ms] += count
        self.sum_ms += other["sum_ms"]
        self.timed += other["timed"]
        for phase in PHASES:
            self.phases_ms[phase] += other["phases_ms"][phase]


class BatchTable:
    """Cells by request name and batch size. A worker's is sent to the master with `take`, and added there."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, int], Cell] = defaultdict(Cell)

    def add(self, name: str, size: int, latency_ms: float, server_timing: str) -> None:
        self.cells[name, size].add(latency_ms, timings(server_timing))

    def take(self) -> list[dict[str, Any]]:
        """All that was counted, as plain data, and begin anew."""
        taken, self.cells = self.cells, defaultdict(Cell)
        return [
            {
                "name": name,
                "size": size,
                "latencies_ms": list(cell.latencies_ms.items()),
                "sum_ms": cell.sum_ms,
                "timed": cell.timed,
                "phases_ms": dict(cell.phases_ms),
            }
            for (name, size), cell in taken.items()
        ]

    def extend(self, taken: Iterable[Mapping[str, Any]]) -> None:
        for other in taken:
            self.cells[other["name"], other["size"]].extend(other)

    def rows(self) -> list[dict[str, Any]]:
        """One object for each cell, in order: latencies at the client, and the server's own means; milliseconds."""
        return [
            {
                "request": name,
                "batch": size,
                "answers": cell.count,
                "mean_ms": round(cell.sum_ms / cell.count, 3),
                "p50_ms": percentile(cell.latencies_ms, 0.5),
                "p99_ms": percentile(cell.latencies_ms, 0.99),
                **{
                    f"server_{phase}_ms": round(cell.phases_ms[phase] / cell.timed, 3) if cell.timed else None
                    for phase in PHASES
                },
            }
            for (name, size), cell in sorted(self.cells.items())
        ]

    def text(self) -> str:
        """The rows as a table for people; "" where there are none."""
        rows = self.rows()
        if not rows:
            return ""
        width = max(len(row["request"]) for row in rows)
        lines = [
            "Latency by batch size, ms",
            f"{'':{width}}  {'':>5}  {'':>8}  {'at the client':>25}  {'in the server, mean':>25}",
            f"{'request':{width}}  {'batch':>5}  {'answers':>8}  {'mean':>7}  {'p50':>7}  {'p99':>7}  "
            + "  ".join(f"{phase:>7}" for phase in PHASES),
        ]
        for row in rows:
            phases = [row[f"server_{phase}_ms"] for phase in PHASES]
            lines.append(
                f"{row['request']:{width}}  {row['batch']:>5}  {row['answers']:>8}  {row['mean_ms']:>7.2f}  "
                f"{row['p50_ms']:>7.1f}  {row['p99_ms']:>7.1f}  "
                + "  ".join("      -" if ms is None else f"{ms:>7.2f}" for ms in phases)
            )
        return "\n".join(lines)
