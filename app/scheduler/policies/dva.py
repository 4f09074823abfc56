"""DVABatch's three policies.

I, for inputs of different lengths: batch similar ones together, and run batches side by side. II, for stages with
different preferred sizes: split a batch if smaller ones are as fast. III, for changing load: late rows catch up with a
running batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.policies.base import Cut, Hold, Policy, cut_rows, hold_or_cut
from app.scheduler.policies.fixed import Window
from app.scheduler.policies.offer import Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Batch, Formed, Row


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
    merges = True

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        if offer.cell:
            return cut_rows(offer, offer.ready.count)
        if offer.state.batches is None:
            return cut_rows(offer, offer.ready.count, Formed.TABLE)
        neighbours, remaining, full = offer.neighbours(), offer.state.estimates.curves.remaining, offer.full
        if neighbours.batch is not None:
            return cut_rows(offer, neighbours.here)
        active, newest = neighbours.active, neighbours.newest
        if active >= full:
            return Hold(None)  # until some of them end
        rows = min(offer.ready.count, full - active)
        gathered = offer.ready.count + neighbours.other_buckets >= full
        if gathered or newest is None or offer.oldest() <= newest.created:
            return cut_rows(offer, rows, Formed.TABLE)  # the window has ended, now or when the last batch was formed
        behind = remaining[1][full - 1] if len(remaining) > 1 else 0
        window = remaining[0][full - 1] - behind if remaining else 0
        return hold_or_cut(offer, rows, newest.created + window - offer.oldest(), now)


class DvaOperator(Window):
    """Policy II. Batches are formed as by `window`.

    When a batch of b rows has completed a stage, it is split in halves if the remaining stages take at least as long
    for b rows as for the two halves one after the other: T(b) >= 2 x T(b / 2). Each half may be split again. The parts
    run one after another, each to the end.
    """

    name = "dva_operator"
    merges = True

    def passes_through(self, estimates: Estimates, stage: int, rows: Sequence[Row]) -> bool:
        remaining = estimates.curves.remaining
        return not remaining or part_of(len(rows), remaining[stage]) == len(rows)

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        if offer.cell:
            return cut_rows(offer, offer.ready.count)
        neighbours, remaining = offer.neighbours(), offer.state.estimates.curves.remaining
        if neighbours.batch is None:
            return super().decide(offer, now)
        here = neighbours.here
        part = part_of(here, remaining[offer.stage]) if remaining else here
        cut = cut_rows(offer, part)
        return cut if part == here else cut._replace(divide=part)


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

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        if offer.cell or offer.state.batches is None:
            return super().decide(offer, now)
        neighbours = offer.neighbours()
        batch, latest = neighbours.batch, neighbours.open_batch(now)
        stretches = latest is not None and stretchable(latest, offer, now)
        if batch is not None:
            may_come = stretches and batch is latest and neighbours.upstream_stage == 0
            return Hold(None) if neighbours.missing(now) or may_come else super().decide(offer, now)
        if latest is None or not stretches:
            return super().decide(offer, now)
        return cut_rows(offer, min(offer.ready.count, offer.full - latest.size), Formed.TABLE)._replace(joins=latest)


def part_of(rows: int, remaining: Sequence[int]) -> int:
    """The size of the parts that a batch is split into; `rows` if it is not. `remaining`: time to the end, by size."""
    while 1 < rows <= len(remaining):
        half = (rows + 1) // 2
        if remaining[rows - 1] < remaining[half - 1] + remaining[rows - half - 1]:
            break
        rows = half
    return rows


def stretchable(batch: Batch, offer: Offer, now: int) -> bool:
    """Whether rows may still join a running batch."""
    remaining = offer.state.estimates.curves.remaining
    if not remaining or batch.closed or batch.launched(len(remaining) - 1) or batch.size >= offer.full:
        return False
    if now - batch.created >= offer.state.program.policy.complete_wait * remaining[0][0]:
        return False
    return all(part_of(batch.size, times) == batch.size for times in remaining[1:])
