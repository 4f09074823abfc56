"""What is written never waits for its reader: a pipe that is full, closed or read late, and the end of a process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from background import eventually

from app import process
from app.observe.standard_streams import NeverWaiting

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0
MIB = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of the smallest size, as its two ends."""
    reader, writer = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read(reader: int, until: bytes) -> bytes:
    found = b""
    while until not in found:
        found += os.read(reader, 4096)
    return found


def test_lines_that_do_not_fit_are_counted_and_told_later(pipe: tuple[int, int], caplog) -> None:
    file = NeverWaiting(pipe[1], "<stderr>")
    sent = [b"%099d\n" % number for number in range(2 * MIB // 100)]  # twice what may wait
    for line in sent:
        file.write(line)
    lost = file.dropped
    kept = sent[: len(sent) - lost]
    assert MIB <= len(b"".join(kept)) < 1.1 * MIB
    assert read(pipe[0], kept[-1]) == b"".join(kept)
    (record,) = eventually(lambda: caplog.records)
    assert record.getMessage() == f"{lost} lines to <stderr> were lost: it was not read, or could not be written"
    file.end(PATIENCE_S)


def test_a_signal_handler_that_prints_may_interrupt_a_print(pipe: tuple[int, int]) -> None:
    file = NeverWaiting(pipe[1], "<stderr>")
    with file._lock:
        file.write(b"from the handler\n")
    assert read(pipe[0], b"\n") == b"from the handler\n"
    file.end(PATIENCE_S)
    file.write(b"after the end\n")  # directly
    assert read(pipe[0], b"\n") == b"after the end\n"


def test_the_watchdog_ends_a_process_whose_pipe_is_full(pipe: tuple[int, int]) -> None:
    program = """
import os, signal
from app import process
fd = process.never_blocking(2)
assert os.get_blocking(2) and fd != 2
try:
    while True:
        os.write(fd, b"x" * 4096)
except BlockingIOError:
    process.end_at_standstill(10**12, fd)
    signal.raise_signal(signal.SIGALRM)
"""
    ran = subprocess.run([sys.executable, "-c", program], stderr=pipe[1], cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 14
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    assert process.never_blocking(closed) == closed


WRITING = """
import sys
from app.observe import standard_streams
with standard_streams.never_waiting():
    for _ in range(5000):
        print("a line of a model that prints")
        print("another", file=sys.stderr)
    raise ValueError("the reason")
"""


@pytest.mark.parametrize("reader", ["none", "gone", "one that reads"])
def test_the_end_of_a_process(pipe: tuple[int, int], reader: str) -> None:
    """It ends as it would, with its traceback where somebody reads, and no matter who does not."""
    given = subprocess.PIPE if reader == "one that reads" else pipe[1]
    ran = subprocess.Popen([sys.executable, "-c", WRITING], stdout=given, stderr=subprocess.STDOUT, cwd=ROOT)
    if reader == "gone":
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), pipe[0])
    told = ran.communicate(timeout=PATIENCE_S)[0]
    assert ran.returncode == 1
    if told is not None:
        lines = told.decode().splitlines()
        assert lines[:4] == ["a line of a model that prints", "another"] * 2
        assert lines[-1] == "ValueError: the reason"
        assert len(lines) > 10_000
