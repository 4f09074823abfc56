"""Writes the scheduler's record to a file, on a thread of its own."""

from __future__ import annotations

import json
import logging
import queue
import threading
from pathlib import Path

from app.scheduler.record import Entry

log = logging.getLogger("starling.record")

_WAITING = 65_536  # entries in memory; a disk that falls further behind ends the record
_END_S = 10.0  # for the disk to take what waits


class RecordFile:
    """JSON lines, one entry each. Use as a context manager; `sink` is for RecordingScheduler.

    If the queue is full the record ends with `{"dropped": n}`, since entries after a gap cannot be replayed. A full
    disk also ends the record, with an error in the log; the server continues.
    Raises OSError when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._dropped = 0
        # A daemon: the process can end although the file, which may be a pipe, takes nothing more.
        self._thread = threading.Thread(target=self._write, name="record", daemon=True)

    def __enter__(self) -> RecordFile:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._entries.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            log.warning("the record is not complete: its file took nothing more for %g s", _END_S)

    def sink(self, entry: Entry) -> None:
        """Take an entry. Never blocks."""
        if self._dropped:
            self._dropped += 1
        elif self._entries.qsize() >= _WAITING:
            self._dropped = 1
            log.warning("the record ends here: the disk is more than %d entries behind", _WAITING)
        else:
            self._entries.put(entry)

    def _write(self) -> None:
        try:
            with self._file as file:
                while (entry := self._entries.get()) is not None:
                    file.write(json.dumps(entry, separators=(",", ":")) + "\n")
                if self._dropped:
                    file.write(json.dumps({"dropped": self._dropped}) + "\n")
        except OSError as exc:
            self._dropped = 1  # and all that follow
            log.error("the record ends here: %s", exc)  # noqa: TRY400 - a full disk needs no traceback
