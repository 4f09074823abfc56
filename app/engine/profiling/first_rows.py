"""What is done for a model that raised on made-up rows, when real ones have come: batch times and the row check.

The first rows that the model has run without a fault are copied from their slots. While the server is idle they run in
batches of a few sizes, and the row check compares their answers. The model serves meanwhile, so that whatever is found
becomes a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from app.contract import Array, Model, SampleRow
from app.engine.device import Ran
from app.engine.pool import Pool
from app.engine.profiling.warmup import filled
from app.models.checks.row_check import Comparisons, Finding, comparisons
from app.models.checks.samples import ROWS, content_of, row_check_rows
from app.models.checks.trial import finding_warning, tolerance_of

log = logging.getLogger("starling.engine")

_LOOKED_AT = 64  # rows: a client that repeats itself must not cost a copy for each of its calls for ever

#: Runs rows as a batch of a size. Raises RuntimeError when the model fails.
RunLater = Callable[[Sequence[SampleRow], int], Awaitable[Ran]]


class FirstRows:
    """Copies of the first rows that differ, at most ROWS of them."""

    def __init__(self) -> None:
        self.rows: list[SampleRow] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._looked_at = 0

    def add(self, pool: Pool, slots: Iterable[int]) -> bool:
        """Look at rows that have run. True when there are enough, or when no more will be looked at."""
        for slot in slots:
            row = pool.row(slot)
            content = content_of(row)
            self._looked_at += 1
            if content not in self._seen:
                self._seen.add(content)
                self.rows.append(row)
            if len(self.rows) == ROWS or self._looked_at == _LOOKED_AT:
                return True
        return False


async def time_rows(row: SampleRow, max_batch: int, most_ns: int, run: RunLater) -> tuple[int, ...]:
    """Nanoseconds of each batch size, from batches of 1, 2 and `max_batch` copies of a row.

    Sizes that would take more than `most_ns` are not run: their time is in proportion to that of the largest that was.
    """
    times: dict[int, int] = {}
    for size in sorted({1, min(2, max_batch), max_batch}):
        if times and max(times.values()) * size / max(times) > most_ns:
            break
        times[size] = (await run([row], size)).busy_ns
    times.setdefault(max_batch, round(times[max(times)] * max_batch / max(times)))
    return filled(times, max_batch)


async def check_later(model: Model, rows: Sequence[SampleRow], run: RunLater) -> None:
    """The row check of a model that serves; what it finds is logged."""
    comparing = comparisons(model.info, row_check_rows(model.info, rows), tolerance_of(model))
    outputs: Sequence[Array] | None = None
    while True:
        batch, finding = await asyncio.to_thread(_next, comparing, outputs)
        if batch is None:
            break
        outputs = (await run(*batch)).outputs
    if finding is not None:
        log.warning("model %s: %s", model.info.name, finding_warning(finding))


def _next(
    comparing: Comparisons, outputs: Sequence[Array] | None
) -> tuple[tuple[list[SampleRow], int] | None, Finding | None]:
    """The next batch, or else what was found. On a thread: outputs may be large."""
    try:
        return comparing.send(outputs), None  # type: ignore[arg-type]  # None starts a generator
    except StopIteration as end:
        return None, end.value
