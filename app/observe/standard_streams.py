"""Standard output and error that never wait for whoever reads them.

A pipe is full when its reader has stalled, and then a write waits for ever: one on the event loop would stop all
requests and probes. So a write goes into a bounded queue, and a thread writes it out. What does not fit is dropped and
counted, and the log has one line about it when the reader is back. This holds for all that Python code writes: the log,
tracebacks, a model's `print`. Native code writes to the file itself, and waits.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.observe.logs import fields

log = logging.getLogger("starling.logs")

_MOST = 1 << 20  # bytes that wait, besides the last write; some 7,000 lines
_END_S = 1.0  # at exit, for what waits
_ROOM_MS = 100  # for a write without a thread: when that has ended, or in a forked child
_PIECE = 4096  # bytes that a pipe with room takes at once (PIPE_BUF)


def open_closed() -> None:
    """Open the standard streams that this process was started without, as by `>&-`: to Python they are None, where
    `print` loses what it is given, and the next file opened would be written by native code that prints. Writing
    standard output fails then; what is written to standard error is lost.
    """
    for fd, (name, mode) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            os.open(os.devnull, mode)  # takes the lowest number that is free: this one
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", errors="replace"))  # noqa: SIM115


@contextmanager
def written_out() -> Iterator[None]:
    """Leave this context when standard output has been written. Raises OSError that names it if it cannot be: at its
    exit Python would print a traceback.
    """
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError as exc:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer at the exit
            raise OSError(exc.errno, exc.strerror, "standard output") from None


class NeverWaiting(io.RawIOBase):
    """Writes to the file `fd` on a thread. Any thread may call `write`, also in a signal handler or a finalizer.

    `dropped`: lines that were lost because too much waited, or because the file could not be written.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.name = name
        self.dropped = 0
        self._told = 0
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._bytes = 0  # that wait
        self._lock = threading.RLock()  # of the counts. Reentrant: a signal handler that writes may interrupt `write`
        self._thread: threading.Thread | None = threading.Thread(target=self._main, name="output", daemon=True)
        self._thread.start()

    def write(self, data: Any, /) -> int:
        """Queue bytes; count their lines as dropped if too much waits."""
        chunk = bytes(data)
        if self._thread is None:
            self._write_if_room(chunk)
            return len(chunk)
        with self._lock:
            fits = self._bytes < _MOST
            if fits:
                self._bytes += len(chunk)
            else:
                self.dropped += chunk.count(b"\n")
        if fits:
            self._queue.put(chunk)
        return len(chunk)

    def end(self, patience_s: float) -> bool:
        """Write what waits, for so many seconds at most; whether all was written. What is written later is lost if it
        cannot be written soon.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._queue.put(None)
        thread.join(max(0.0, patience_s))
        return not thread.is_alive()

    def forked(self) -> None:
        """In the child of a fork, which has no other threads."""
        self._thread = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def close(self) -> None:
        """Nothing: two text streams may share the file."""

    def _main(self) -> None:
        ended = False
        while not ended or not self._queue.empty():
            chunks = [self._queue.get()]
            while not self._queue.empty():
                chunks.append(self._queue.get())
            ended = ended or None in chunks
            data = b"".join(filter(None, chunks))
            written = self._write_all(data)
            with self._lock:
                self._bytes -= len(data)
                self.dropped += 0 if written else data.count(b"\n")
            if written and (lost := self.dropped - self._told):
                self._told += lost
                log.warning("%d lines to %s were lost: it was not read, or could not be written", lost, self.name,
                            **fields(dropped=lost))  # fmt: skip

    def _write_all(self, data: bytes) -> bool:
        """Wait until all is written. False if nobody can read it any more, or the disk is full."""
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # another process has made the file, which it shares, non-blocking
                    self._has_room(None)
        except OSError:
            return False
        return True

    def _write_if_room(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and self._has_room(_ROOM_MS):
                rest = rest[os.write(self._fd, rest[:_PIECE]) :]
        except OSError:
            pass

    def _has_room(self, patience_ms: int | None) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(patience_ms))


@contextmanager
def never_waiting() -> Iterator[Callable[[], int]]:
    """Replace `sys.stdout` and `sys.stderr`, until what waits at the end has been written. If that takes too long they
    stay, so that nothing waits later either. Yields a function that counts lost lines.

    Where both are one file they share a thread, which keeps their order.
    """
    files: dict[tuple[int, int], NeverWaiting] = {}
    before = {name: getattr(sys, name) for name in ("stderr", "stdout")}
    for name, stream in before.items():
        try:
            stream.flush()
            fd = stream.fileno()
        except (AttributeError, OSError):  # the process was started without it, or it is no file
            continue
        status = os.fstat(fd)
        file = files.get(key := (status.st_dev, status.st_ino))
        if file is None:
            file = files[key] = NeverWaiting(fd, f"<{name}>")
            os.register_at_fork(after_in_child=file.forked)
        setattr(sys, name, io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True))
    try:
        yield lambda: sum(file.dropped for file in files.values())
    finally:
        until_s = time.monotonic() + _END_S
        ended = [file.end(until_s - time.monotonic()) for file in files.values()]
        if all(ended):
            vars(sys).update(before)
