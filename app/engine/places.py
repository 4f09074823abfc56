"""Where the rows of a unit lie when it has run: in which batch, at which place in it, and what they have taken so far.

A row's time is that of all its units; between them it has waited.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.device import Ran
from app.engine.lease import Batch, Lease, Parts
from app.scheduler.types import Unit


def note_stages(unit: Unit, ran: Ran, ended: int, parts: Parts, over: Sequence[int]) -> list[Batch]:
    """Rows have been through some stages, and those at the positions `over` have ended. Returns the batches of those.

    Rows that come out of one batch and stay together share what is noted of them.
    """
    places = {position: place for place, position in enumerate(over)}
    batches: dict[tuple[int, bool], Batch] = {}
    for position, row in enumerate(unit.rows):
        lease: Lease = row.call  # type: ignore[assignment]  # a cast would be a call per row
        before, ends = lease.places[row.index], position in places
        known = (id(before[0]) if before else 0, ends)
        batch = batches.get(known)
        if batch is None:
            total = added(before[0].parts, parts) if before else parts
            batch = batches[known] = Batch(ran.outputs if ends else [], ended, total, len(unit.rows))
        lease.places[row.index] = (batch, places[position] if ends else position)
    return [batch for (_, ends), batch in batches.items() if ends]


def note_steps(unit: Unit, ran: Ran, ended: int, parts: Parts) -> list[Batch]:
    """As `note_stages`, of steps of a cell: rows leave one by one, and only those that have ended have outputs.

    Where rows join at each step, each has another past. So what one has taken is added up in a batch of its own.
    """
    places = {position: place for place, position in enumerate(ran.ended)}
    batches: dict[Parts, Batch] = {}
    for position, row in enumerate(unit.rows):
        lease: Lease = row.call  # type: ignore[assignment]  # as above
        before = lease.places[row.index]
        if position not in places:
            if before is None:
                lease.places[row.index] = (Batch([], ended, parts, len(unit.rows)), position)
            else:
                before[0].parts = added(before[0].parts, parts)
            continue
        total = added(before[0].parts, parts) if before else parts
        batch = batches.get(total)
        if batch is None:
            batch = batches[total] = Batch(ran.outputs, ended, total, len(unit.rows))
        lease.places[row.index] = (batch, places[position])
    return list(batches.values())


def added(one: Parts, other: Parts) -> Parts:
    a, b, c = one
    x, y, z = other
    return (a + x, b + y, c + z)
