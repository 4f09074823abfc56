"""What requests of one key may ask for, and how much of a model's queue they may hold: none keeps the others out."""

from __future__ import annotations

from app.contract import CLASSES
from app.errors import Forbidden, QueueFull
from app.http.keys import Key

_BESIDE_OTHERS = 0.5  # of the queue, while rows of other keys are in flight
_ALONE = 0.9  # a key that comes meanwhile finds room

Queue = tuple[str, str, str]  # model, version and class: each class has a queue of its own


def permit(key: Key, klass: str, priority: int) -> None:
    """Raise Forbidden for a class or priority that a key may not name. `priority` 0 is the model's default."""
    if key.klass and CLASSES.index(klass) < CLASSES.index(key.klass):
        raise Forbidden(f"class: with this key only {key.klass} requests may be sent, got {klass}: set X-Class")
    if 0 < priority < key.priority:
        raise Forbidden(f"priority: with this key it may be {key.priority} or a larger number, got {priority}")


class Shares:
    """Rows in flight by queue and key: accepted, and not answered yet. Used on the event loop."""

    def __init__(self) -> None:
        self._rows: dict[Queue, dict[bytes, int]] = {}

    def take(self, queue: Queue, key: Key, rows: int, limit: int) -> None:
        """Count `rows` more for a key. `limit`: rows that the queue holds.

        A key with nothing in flight may send a request of any size. Raises QueueFull beyond the key's part.
        """
        held = self._rows.setdefault(queue, {})
        own = held.get(key.value, 0)
        part = _BESIDE_OTHERS if len(held) > bool(own) else _ALONE
        if own and own + rows > part * limit:
            raise QueueFull(
                f"model {queue[0]!r}: requests with this key hold {own} rows, and may hold {part:.0%} of the queue's "
                f"{limit}" + (" while others wait" if part == _BESIDE_OTHERS else ""),
                retry_after_s=1,
            )
        held[key.value] = own + rows

    def give_back(self, queue: Queue, key: Key, rows: int) -> None:
        """These rows have been answered."""
        held = self._rows[queue]
        held[key.value] -= rows
        if not held[key.value]:
            del held[key.value]
            if not held:
                del self._rows[queue]
