"""Reads a server's output now and then: for `READ_S`, then not for `STALL_S`, as a log collector that stalls."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from typing import Self

from loadtest.common.servers import Server

READ_S, STALL_S = 2.0, 10.0
_COUNTED = re.compile(rb"^starling_lost_log_lines_total (\S+)$", re.MULTILINE)
_LOST = re.compile(rb"(\d+) lines to <\w+> were lost")


class LogReader:
    """A pipe for a server's output and the thread that reads it, as a context manager.

    `lines`: how many were read. `lost`: the lines that the server itself says it has lost. `stalls`: how often nothing
    was read for a while.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.output = os.fdopen(writer, "wb")  # for the server; a Server closes it in the end
        self.lines = self.lost = self.stalls = 0
        self._rest = b""
        self._steady = threading.Event()  # set when it is to read all the time
        self._thread = threading.Thread(target=self._main, name="log-reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.read_on()
        self.output.close()
        self._thread.join()
        os.close(self._reader)

    def read_on(self) -> None:
        """From now on, read all that comes."""
        self._steady.set()

    def settled(self, server: Server, limit_s: float = 30.0) -> dict[str, int]:
        """Read all that the idle server has written. Lines that were read, those that the server counts as lost and
        those that its log says it has lost (which it says when all has been read); and the stalls.
        """
        self.read_on()
        until_s = time.monotonic() + limit_s
        while True:
            _, _, page = server.call("GET", "/metrics")
            (counted,) = _COUNTED.findall(page)
            found = {"read": self.lines, "counted": int(float(counted)), "told": self.lost, "stalls": self.stalls}
            if found["counted"] == found["told"] or time.monotonic() > until_s:
                return found
            time.sleep(0.1)

    def _main(self) -> None:
        while True:
            until_s = time.monotonic() + READ_S
            while self._steady.is_set() or time.monotonic() < until_s:
                if select.select([self._reader], [], [], READ_S / 4)[0]:
                    data = os.read(self._reader, 1 << 16)
                    if not data:
                        return
                    self._take(data)
            self.stalls += 1
            self._steady.wait(STALL_S)

    def _take(self, data: bytes) -> None:
        self.lines += data.count(b"\n")
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        self.lost += sum(int(count) for count in _LOST.findall(whole))
