"""Keys: one from a setting, any number from a file, which is read again when it changes; and queue shares per key.

A line of the file may limit what requests with its key may ask for: `KEY priority=2 class=best_effort`. No message
contains a key or a part of one. `Shares` bounds how much of a model's queue one key may use, so that no key starves
the others.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.contract import CLASSES, Klass
from app.errors import ConfigError, Forbidden, QueueFull, as_config_error
from app.http.reread_files import WatchedFiles

log = logging.getLogger("starling.keys")

_COMMENT = re.compile(r"(^|\s)#.*")  # a key may contain the character
_LARGEST_FILE = 64 << 10  # bytes: a thousand long keys. Each request is compared with all of them

_BESIDE_OTHERS = 0.5  # share of a queue that one key may use while other keys have rows in flight
_ALONE = 0.9  # the same while no other key has any: some room is left for a key that comes

QueueKey = tuple[str, str, Klass]  # model, version and class: each class has its own queue


class Key(NamedTuple):
    """A key, and the best class and priority that its requests may ask for.

    `priority`: a smaller number is better; 0: any.
    """

    value: bytes
    priority: int = 0
    klass: Klass = Klass.REALTIME


class Keys:
    """A set of keys. `name`: of the setting, for messages. Raises ConfigError: see `_checked` and `_read`."""

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
        """The key that equals `given`; None if there is none.

        Safe against timing attacks: every key is compared, each in a time that does not depend on where it differs.
        """
        found = [key for key in self._keys if hmac.compare_digest(given, key.value)]
        return found[-1] if found else None

    def reread(self) -> None:
        """Read the file again if it has changed. If it is broken or empty, the previous keys stay."""
        if self._file is None or not self._watched.changed():
            return
        try:
            self._keys = self._own + self._read(self._file)
        except ConfigError as exc:
            log.error("%s; the keys read before still hold", exc)  # noqa: TRY400 - the message says all there is
        else:
            log.info("%s_file: read again: keys: %d", self._name, len(self._keys) - len(self._own))

    def _read(self, file: Path) -> tuple[Key, ...]:
        """The keys of a file, one per line; empty lines and comments are skipped.

        Raises ConfigError if the file cannot be read, has no key, or has a line that is not a key.
        """
        where = f"{self._name}_file {file}"
        with as_config_error(f"{self._name}_file"), file.open("rb") as opened:
            data = opened.read(_LARGEST_FILE + 1)
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: expected text in UTF-8") from None
        if len(data) > _LARGEST_FILE:
            raise ConfigError(f"{where}: expected at most {_LARGEST_FILE} bytes")
        numbered = [(number, _COMMENT.sub("", line).strip()) for number, line in enumerate(lines, 1)]
        keys = [_parsed(line, f"{where}: line {number}") for number, line in numbered if line]
        if not keys:
            raise ConfigError(f"{where}: expected a key, found none")
        return tuple({key.value: key for key in keys}.values())


def keys_of(name: str, key: str | None, file: Path | None) -> Keys | None:
    """The keys of the settings `name` and `name_file`; None if neither is given."""
    return None if key is None and file is None else Keys(name, key, file)


def _parsed(line: str, where: str) -> Key:
    """Parse a line of a file. Raises ConfigError, whose message does not contain the key."""
    value, *options = line.split()
    key = Key(_checked(value, where))
    for option in options:
        name, _, given = option.partition("=")
        if name == "priority" and given.isascii() and given.isdecimal() and int(given) > 0:
            key = key._replace(priority=int(given))
        elif name == "class" and given in CLASSES:
            key = key._replace(klass=CLASSES[given])
        else:
            raise ConfigError(f"{where}: behind the key: expected priority=1 or more, or class={' or '.join(CLASSES)}")
    return key


def _checked(key: str, where: str) -> bytes:
    """A key as bytes. Raises ConfigError if a header cannot carry it."""
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{where}: expected a key of visible ASCII characters, without a space")
    return key.encode()


def check_permitted(key: Key, klass: Klass, priority: int) -> None:
    """Raise Forbidden if the key does not allow this class or priority. `priority` 0: the model's default."""
    if klass < key.klass:
        raise Forbidden(f"class: with this key only {key.klass!s} requests may be sent, got {klass!s}: set X-Class")
    if 0 < priority < key.priority:
        raise Forbidden(f"priority: with this key it may be {key.priority} or a larger number, got {priority}")


class Shares:
    """Counts the rows in flight (accepted, not answered yet) of each queue and key. Used on the event loop."""

    def __init__(self) -> None:
        self._rows: dict[QueueKey, dict[bytes, int]] = {}

    def take(self, queue: QueueKey, key: Key, rows: int, limit: int) -> Callable[[], None]:
        """Count `rows` more for a key, of a queue of `limit` rows, until what this returns is called.

        Raises QueueFull beyond the key's share. A key with nothing in flight may send a request of any size.
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
        return partial(self._give_back, queue, key, rows)

    def _give_back(self, queue: QueueKey, key: Key, rows: int) -> None:
        held = self._rows[queue]
        held[key.value] -= rows
        if not held[key.value]:
            del held[key.value]
            if not held:
                del self._rows[queue]
