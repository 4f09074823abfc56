"""Keys that requests carry: one from a setting, any number from a file that is read again when it changes.

And how much of a model's queue the requests with one key may hold, so that no key keeps the others out.

A line of the file may say behind its key what requests with it may ask for: `KEY priority=2 class=best_effort`. No
message holds a key, nor a part of one.
"""

from __future__ import annotations

import hmac
import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.contract import CLASSES, Lease
from app.errors import ConfigError, Forbidden, QueueFull
from app.http.reread_files import WatchedFiles

log = logging.getLogger("starling.keys")

_LARGEST_FILE = 64 << 10  # bytes: a thousand long keys, each of which a request is compared with

_BESIDE_OTHERS = 0.5  # of a model's queue, for one key, while rows of other keys are in flight
_ALONE = 0.9  # the same while no other key has rows in flight, so that another one finds room

Queue = tuple[str, str, str]  # model, version and class: each class has a queue of its own


class Key(NamedTuple):
    """A key, and what requests with it may ask for.

    `priority`: the best one, 0 for any; a smaller number is better. `klass`: the best class; "" for any.
    """

    value: bytes
    priority: int = 0
    klass: str = ""


class Keys:
    """Keys of which any will do. `name` is the setting's, for messages. Raises ConfigError: see `_checked`, `_read`."""

    def __init__(self, name: str, key: str | None, file: Path | None) -> None:
        self._name = name
        self._file = file
        self._watched = WatchedFiles(*([] if file is None else [file]))
        self._own = () if key is None else (Key(_checked(key, name)),)
        self._keys = self._own + (() if file is None else self._read(file))

    @property
    def several(self) -> bool:
        return len(self._keys) > 1

    def find(self, given: bytes) -> Key | None:
        """The key that these bytes are; None if they are none.

        Its duration reveals neither how much of a key is right, nor which: every key is compared, in a time that
        does not depend on where they differ.
        """
        found = None
        for key in self._keys:
            if hmac.compare_digest(given, key.value):
                found = key
        return found

    def reread(self) -> None:
        """Read the file again if it has changed. A file that is broken or empty keeps the keys there were."""
        if self._file is None or not self._watched.changed():
            return
        try:
            self._keys = self._own + self._read(self._file)
        except ConfigError as exc:
            log.error("%s; the keys read before still hold", exc)  # noqa: TRY400 - the message says all there is
        else:
            log.info("%s_file: read again: keys: %d", self._name, len(self._keys) - len(self._own))

    def _read(self, file: Path) -> tuple[Key, ...]:
        """The keys of a file, one a line; empty lines and comments are skipped.

        Raises ConfigError for a file that cannot be read, has no key, or a line that is none.
        """
        where = f"{self._name}_file {file}"
        try:
            with file.open("rb") as opened:
                data = opened.read(_LARGEST_FILE + 1)
            lines = data.decode("utf-8-sig").splitlines()
        except OSError as exc:
            raise ConfigError(f"{where}: {exc.strerror or exc}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: expected text in UTF-8") from None
        if len(data) > _LARGEST_FILE:
            raise ConfigError(f"{where}: expected at most {_LARGEST_FILE} bytes")
        numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
        keys = [
            _parsed(line, f"{where}: line {number}") for number, line in numbered if line and not line.startswith("#")
        ]
        if not keys:
            raise ConfigError(f"{where}: expected a key, found none")
        return tuple({key.value: key for key in keys}.values())


def keys_of(name: str, key: str | None, file: Path | None) -> Keys | None:
    """The keys of the settings `name` and `name_file`; None where neither is given."""
    return None if key is None and file is None else Keys(name, key, file)


def _parsed(line: str, where: str) -> Key:
    """A line of a file. Raises ConfigError, without the key."""
    value, *options = line.split()
    key = Key(_checked(value, where))
    for option in options:
        name, _, given = option.partition("=")
        if name == "priority" and given.isascii() and given.isdecimal() and int(given) > 0:
            key = key._replace(priority=int(given))
        elif name == "class" and given in CLASSES:
            key = key._replace(klass=given)
        else:
            raise ConfigError(f"{where}: behind the key: expected priority=1 or more, or class={' or '.join(CLASSES)}")
    return key


def _checked(key: str, where: str) -> bytes:
    """A key as a header has it. Raises ConfigError for one that no header can carry."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{where}: expected a key of visible ASCII characters, without a space")
    return key.encode()


def check_permitted(key: Key, klass: str, priority: int) -> None:
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

    def charge(self, lease: Lease, queue: Queue, key: Key, limit: int) -> None:
        """Count the rows of a lease until it is closed. Raises QueueFull, having closed it, beyond the key's part."""
        rows = len(lease.rows)
        try:
            self.take(queue, key, rows, limit)
        except QueueFull:
            lease.close()
            raise
        lease.on_close = partial(self.give_back, queue, key, rows)

    def give_back(self, queue: Queue, key: Key, rows: int) -> None:
        """These rows have been answered."""
        held = self._rows[queue]
        held[key.value] -= rows
        if not held[key.value]:
            del held[key.value]
            if not held:
                del self._rows[queue]
