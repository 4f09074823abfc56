"""DVABatch's three policies.

I, for inputs of different lengths: batch similar ones together, and run batches side by side. II, for stages with
different preferred sizes: split a batch if smaller ones are as fast. III, for changing load: late rows catch up with a
running batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows, held
from app.scheduler.policies.fixed import Window
from app.scheduler.policies.view import Facts, KeyView
from app.scheduler.types import Batch, Formed


class DvaInput(Policy):
    """Policy I. Rows are clustered by length: the model's `length_buckets` are the clusters.

    A window ends when the waiting rows of all clusters fill the largest batch, or after the time that the first stage
    takes for the largest batch. Then each cluster becomes a batch (`new`), padded only to its own longest row. Batches
    stay unchanged to the end and run at once on all workers. At most the rows of one largest batch are in the pipeline.

    The window begins when the last batch was formed, if that still runs: while it may be in the first stage, other rows
    gather. The paper does not say when it begins. Counted from the first waiting row, as in Triton, each row would wait
    several times as long as it takes alone, but the paper reports less latency than without a window at low load. There
    is no window if nothing is measured, or for a model of one stage.
    """

    name = "dva_input"
    holds = True
    sees_stages = True

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        neighbours, remaining = view.neighbours, view.facts.remaining
        if neighbours is not None and neighbours.cell:
            return cut_rows(view, view.ready)
        if neighbours is not None and neighbours.batch is not None:
            return cut_rows(view, neighbours.here)
        active = other_buckets = 0
        last_formed = -1
        if neighbours is not None:
            active, other_buckets = neighbours.active, neighbours.other_buckets
            last_formed = neighbours.last_formed
        if active >= view.full:
            return Hold(None)  # until some of them end
        rows = min(view.ready, view.full - active)
        if view.ready + other_buckets >= view.full or last_formed < 0 or view.oldest() <= last_formed:
            return cut_rows(view, rows, Formed.TABLE)  # the window has ended, now or when the last batch was formed
        behind = remaining[1][view.full - 1] if len(remaining) > 1 else 0
        window = remaining[0][view.full - 1] - behind if remaining else 0
        ended = held(view, last_formed + window - view.oldest(), now)
        return ended if isinstance(ended, Hold) else cut_rows(view, rows, ended)


class DvaOperator(Window):
    """Policy II. Batches are formed as by `window`.

    When a batch of b rows has completed a stage, it is split in halves if the remaining stages take at least as long
    for b rows as for the two halves one after the other: T(b) >= 2 x T(b / 2). Each half may be split again. The parts
    run one after another, each to the end.
    """

    name = "dva_operator"
    sees_stages = True

    def passes_through(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        return not facts.remaining or part_of(rows, facts.remaining[stage]) == rows

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        neighbours, remaining = view.neighbours, view.facts.remaining
        if neighbours is not None and neighbours.cell:
            return cut_rows(view, view.ready)
        if neighbours is None or neighbours.batch is None:
            return super().decide(view, idle, now)
        part = part_of(neighbours.here, remaining[view.stage]) if remaining else neighbours.here
        if part == neighbours.here:
            return cut_rows(view, part)
        rows = min(part, view.limit)
        return Cut(rows, rows, cut_rows(view, rows).reason, divide=part)


class DvaLoad(DvaOperator):
    """Policies II and III.

    Rows that arrive while the newest batch runs become part of it (`stretch`) if it is young enough, has room for them
    and will not be split. They start at once if a worker is free, else when the batch reaches its next boundary. There
    it waits until they have caught up.

    Young enough: the paper bounds the age of the batch by a time T_comp_wait and gives no value. Here it is
    `complete_wait` x T(1), where T(1) is the time of one row through all stages. The paper's artefact also bounds the
    number of stages passed; here a batch may be stretched until it begins its last stage.
    """

    name = "dva_load"

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        neighbours = view.neighbours
        if neighbours is None or neighbours.cell:
            return super().decide(view, idle, now)
        batch = neighbours.batch
        if batch is not None:
            upstream = neighbours.upstream_stage == 0
            may_come = batch is neighbours.latest and upstream and stretchable(batch, view, now)
            return Hold(None) if neighbours.missing or may_come else super().decide(view, idle, now)
        rows = min(view.ready, view.limit)
        latest = neighbours.latest
        if latest is not None and stretchable(latest, view, now):
            rows = min(rows, view.full - latest.size)
            return Cut(rows, rows, Formed.FULL if rows == view.full else Formed.TABLE, joins=latest)
        return super().decide(view, idle, now)


def part_of(rows: int, remaining: Sequence[int]) -> int:
    """The size of the parts that a batch is split into; `rows` if it is not. `remaining`: time to the end, by size."""
    while 1 < rows <= len(remaining):
        half = (rows + 1) // 2
        if remaining[rows - 1] < remaining[half - 1] + remaining[rows - half - 1]:
            break
        rows = half
    return rows


def stretchable(batch: Batch, view: KeyView, now: int) -> bool:
    """Whether rows may still join a running batch."""
    remaining = view.facts.remaining
    if not remaining or batch.closed or batch.launched[-1] or batch.size >= view.full:
        return False
    if now - batch.created >= view.facts.complete_wait * remaining[0][0]:
        return False
    return all(part_of(batch.size, times) == batch.size for times in remaining[1:])
