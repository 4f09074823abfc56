"""Which of several models goes first, of real-time rows of one priority.

The oldest row first is not best for models of different batch times: a batch of 1 ms waits for one of 10 ms whose row
came a moment before. So a model may overtake by its index: the age of its oldest row times the rows that its next batch
ends per nanosecond. That is M-LWDF (M. Andrews et al., Scheduling in a Queueing System with Asynchronously Varying
Service Rates, 2004), under which queues are bounded wherever any order keeps them so; and the generalised c-mu rule
where a wait costs its square (J. A. Van Mieghem, Dynamic Scheduling with Convex Delay Costs, 1995). Without the age,
the mean would be least and the slow model could starve.

What the fast model gains the tail of the slow one pays (`python -m experiments.many.models`). Two bounds keep that
small: an index must be `_GAIN` times that of the oldest row, so that models of about one speed go in order of arrival;
and no row is overtaken by one that arrived more than a round later, the time in which each model that waits runs a
batch. So in overload of one model the others wait a round longer than in order of arrival, at most.

Where the weights of the models that wait differ, the largest weight times index goes first, without these bounds. In
overload of all, with queues of one length, that shares the device's time in proportion to the weights: a queue of n
rows of which x are served per second is n / x old, weight mu n / x is the same for all, and x / mu is a share of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import itemgetter

from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet
from app.scheduler.rows.ready_table import ReadyTable
from app.scheduler.types import Row

_GAIN = 3.0


def sooner(
    oldest: ReadySet, table: ReadyTable, held: Collection[ReadySet], states: Mapping[int, ProgramState], now: int
) -> ReadySet:
    """The set that goes before `oldest`, which is first in order of arrival, or that set itself.

    Of each program its oldest set counts. Where times are not known, or rows make several steps, nothing is overtaken.
    """
    first = oldest.head()
    assert first is not None
    level = first.call.priority
    heads: dict[int, tuple[ReadySet, Row]] = {}
    for ready in table.nonempty:
        if ready.klass or ready in held or (row := ready.head()) is None or row.call.priority != level:
            continue
        program = ready.key[0]
        if program not in heads or row.order < heads[program][1].order:
            heads[program] = ready, row
    if len(heads) == 1:
        return oldest
    round_ns, found, weights = 0.0, list[tuple[float, int, ReadySet]](), set[float]()
    for ready, row in heads.values():
        state, stage = states[ready.key[0]], ready.key[1]
        if not state.speeds:
            return oldest
        rows = min(ready.count, state.full[stage])
        speed = state.speeds[stage][rows - 1] / state.facts[0].scale
        round_ns += rows / speed
        arrived = row.call.arrived
        weights.add(weight := state.program.weight)
        found.append(
            (weight * speed * (now - arrived + 1), arrived, ready)
        )  # of calls that came just now the fastest is first
    if len(weights) > 1:
        return max(found, key=itemgetter(0))[2]
    latest = first.call.arrived + round_ns
    least = _GAIN * next(index for index, _, ready in found if ready is oldest)
    best, chosen = max(((index, ready) for index, arrived, ready in found if arrived <= latest), key=itemgetter(0))
    return chosen if best >= least else oldest
