"""Chooses which of several models is served next, among real-time rows of one priority.

Serving the oldest row first is not best if batch times differ: a batch of 1 ms would wait for one of 10 ms whose row
arrived a moment earlier. So a model may overtake by its index: the age of its oldest row times the throughput of its
next batch. This is M-LWDF (M. Andrews et al., Scheduling in a Queueing System with Asynchronously Varying Service
Rates, 2004), which keeps queues bounded whenever any order does. It is also the generalised c-mu rule for a cost that
is the square of the wait (J. A. Van Mieghem, Dynamic Scheduling with Convex Delay Costs, 1995). Without the age the
mean latency would be lowest, but the slow model could starve.

The fast model gains at the expense of the slow model's tail latency (`python -m experiments.many`). Two bounds limit
that:
    1. An index must be `_GAIN` times that of the oldest row. So models of similar speed are served in order of arrival.
    2. A row is not overtaken by one that arrived much later. The bound is a sum over the waiting models: the time of
       their next batch times the share of a row's time that full batches save, over the units that run at once. A row
       that waits shares its batch with later rows of its model, which makes up for the delay. If batches save nothing,
       all are served in order of arrival.
So while one model is overloaded, the others wait about as long as in order of arrival.

If the weights of the waiting models differ, the largest weight times index is served first, without these bounds. If
all are overloaded and have queues of one length, they share the device's time in proportion to their weights: a queue
of n rows of which x are served per second is n / x old, weight mu n / x is the same for all, and x / mu is a share of
time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import ReadySet
from app.scheduler.rows.ready_table import Ranking, ReadyTable
from app.scheduler.types import Row

_GAIN = 3.0

#: Of a program: the rank of its first set, that set, and its first row.
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
    same_level = [head for head in heads.values() if head[0][:2] == level[:2]]
    return _soonest(same_level, oldest, row, states, running, now)


def _soonest(
    heads: Collection[Head],
    oldest: ReadySet,
    first_row: Row,
    states: Mapping[int, ProgramState],
    running: int,
    now: int,
) -> ReadySet:
    """Of real-time sets of one priority: `oldest`, or one that overtakes it.

    A program with unknown times, or whose rows make several steps, neither overtakes nor is overtaken.
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
        index = state.program.weight * speed * (now - arrived + 1)  # + 1: of rows that arrive now the fastest is first
        found.append((index, arrived, ready))
        if ready is oldest:
            least = _GAIN * index
    latest = now if weighted else first_row.call.arrived + lead_ns
    best, chosen = 0.0, oldest
    for index, arrived, ready in found:
        if index > best and arrived <= latest and (weighted or ready is oldest or index >= least):
            best, chosen = index, ready
    return chosen
