"""What rows make while their unit runs, for calls that read it piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from app.engine.device import Job, Piece
from app.engine.lease import Lease
from app.scheduler.types import Row, Unit


def send_pieces(job: Job, unit: Unit, on_loop: Callable[[Callable[[], None]], None]) -> None:
    """Have the worker of this job send what the rows make whose calls have an `on_piece`.

    `on_loop`: called on the worker's thread with what the event loop is to call.
    """
    readers = {row.slot: row for row in unit.rows if cast("Lease", row.call).on_piece is not None}
    if readers:
        job.read = frozenset(readers)
        job.on_pieces = lambda pieces: on_loop(lambda: _give(readers, pieces))


def _give(readers: dict[int, Row], pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        row = readers[piece.slot]
        lease = cast("Lease", row.call)
        if lease.alive and lease.on_piece is not None:
            lease.began()
            lease.on_piece(row.index, piece.made, piece.steps)
