"""Which of several models goes first, of real-time rows of one priority.

The oldest row first is not best for models of different batch times: a batch of 1 ms waits for one of 10 ms whose row
came a moment before. So a model may overtake by its index: the age of its oldest row times the rows that its next batch
ends per nanosecond. That is M-LWDF (M. Andrews et al., Scheduling in a Queueing System with Asynchronously Varying
Service Rates, 2004), under which queues are bounded wherever any order keeps them so; and the generalised c-mu rule
where a wait costs its square (J. A. Van Mieghem, Dynamic Scheduling with Convex Delay Costs, 1995). Without the age,
the mean would be least and the slow model could starve.

What the fast model gains the tail of the slow one pays (`python -m experiments.many`). Two bounds keep that small. An
index must be `_GAIN` times that of the oldest row, so that models of about one speed go in order of arrival. And no row
is overtaken by one that arrived much later: by no more than each model that waits needs for a batch, times the part of
a row's time that full batches save, over the units that run at once. A row that waits while others of its model come
shares a batch with them, which makes up for the delay; where batches save nothing, all go in order of arrival. So in
overload of one model the others wait about as long as in order of arrival.

Where the weights of the models that wait differ, the largest weight times index goes first, without these bounds. In
overload of all, with queues of one length, that shares the device's time in proportion to the weights: a queue of n
rows of which x are served per second is n / x old, weight mu n / x is the same for all, and x / mu is a share of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet
from app.scheduler.rows.ready_table import Ranking, ReadyTable
from app.scheduler.types import Row

_GAIN = 3.0

#: The first set of a program in order of arrival, with its rank and its first row.
Head = tuple[tuple[int, ...], ReadySet, Row]


def next_set(
    table: ReadyTable,
    held: Collection[ReadySet],
    ranking: Ranking,
    states: Mapping[int, ProgramState],
    running: int,
    now: int,
) -> ReadySet | None:
    """The set to serve next among those not held back, or None: as `ReadyTable.next_set`, for several programs.

    `running`: units that may run at once.
    """
    heads: dict[int, Head] = {}
    for ready in table.nonempty:
        if ready in held:
            continue
        row, program = ready.head(), ready.key[0]
        rank = table.rank(ready, ranking)
        if program not in heads or rank < heads[program][0]:
            heads[program] = rank, ready, row
    if not heads:
        return None
    level, oldest, row = min(heads.values())
    if len(heads) == 1 or oldest.klass:
        return oldest
    heads_alike = [head for head in heads.values() if head[0][:2] == level[:2]]
    return _soonest(heads_alike, oldest, row, states, running, now)


def _soonest(
    heads: Collection[Head],
    oldest: ReadySet,
    first_row: Row,
    states: Mapping[int, ProgramState],
    running: int,
    now: int,
) -> ReadySet:
    """Of real-time sets of one priority: `oldest`, or one that overtakes it.

    One whose times are not known, or whose rows make several steps, does not overtake, and is not overtaken as oldest.
    """
    lead_ns, least, weighted = 0.0, 0.0, False
    weight = states[oldest.key[0]].program.weight
    found: list[tuple[float, int, ReadySet]] = []
    for _, ready, row in heads:
        program, stage, _ = ready.key
        state = states[program]
        if not state.speeds and ready is oldest:
            return oldest
        if not state.speeds:
            continue
        speeds, rows = state.speeds[stage], min(ready.count, state.full[stage])
        speed = speeds[rows - 1] / state.facts.scale
        saved = 1 - speeds[0] / speeds[-1]
        lead_ns += saved * rows / speed / running
        weighted = weighted or state.program.weight != weight
        arrived = row.call.arrived
        index = state.program.weight * speed * (now - arrived + 1)  # of calls that came just now the fastest is first
        found.append((index, arrived, ready))
        if ready is oldest:
            least = _GAIN * index
    latest = now if weighted else first_row.call.arrived + lead_ns
    best, chosen = 0.0, oldest
    for index, arrived, ready in found:
        if index > best and arrived <= latest and (weighted or ready is oldest or index >= least):
            best, chosen = index, ready
    return chosen
