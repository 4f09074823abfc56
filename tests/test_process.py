"""What is set for the whole process: freed memory, open files, forked children, its end."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from app import process

GIVEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")


@pytest.mark.parametrize("given", GIVEN)
def test_what_was_given_stays(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(given, "")
    told: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *what: told.extend(what)))
    process.keep_freed_memory()
    assert told == []


@pytest.mark.parametrize(
    ("limits", "set_to", "told"),
    [((1024, 1 << 20), 4352, None), ((1024, 2048), 2048, 2048), ((8192, 8192), None, None), ((-1, -1), None, None)],
)
def test_open_files(limits: tuple[int, int], set_to: int | None, told: int | None, monkeypatch) -> None:
    resource = pytest.importorskip("resource")
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: found.append(both))
    assert process.allow_open_files(4096) == told
    assert found == ([] if set_to is None else [(set_to, limits[1])])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_command_cleans_up(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, process.ended_by_signals(7):
        signal.raise_signal(number)
    assert ended.value.code == 7
    assert signal.getsignal(number) == before


def test_a_forked_process_ends_by_the_signal_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with process.ended_by_signals(7):
        child = multiprocessing.get_context("fork").Process(target=signal.raise_signal, args=[signal.SIGTERM])
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGTERM
    assert capfd.readouterr().err == ""


def test_nohup_stays() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.ended_by_signals(7):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


FORKS = """
import multiprocessing, signal, socket
from app import process
signal.signal(signal.SIGTERM, lambda *_: None)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
connection, _ = listener.accept()
process.let_children_end(lambda: [-1, listener.fileno(), connection.fileno()])
with multiprocessing.get_context("fork").Pool(1) as pool:  # which is terminated
    assert pool.apply(abs, (-1,)) == 1
    address = listener.getsockname()
    listener.close()
    connection.close()
    assert client.recv(1) == b""  # the child that still runs has not kept it open
    client.close()
    socket.create_server(address).close()  # nor listens
"""
EARLY = """
import multiprocessing, os, signal
from app import process
signal.signal(signal.SIGTERM, lambda *_: None)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # while it has the handler yet
process.let_children_end(list)
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.join()
assert child.exitcode == -signal.SIGTERM
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if not (pid := os.fork()):  # a model's code may have blocked it itself
    os._exit(signal.pthread_sigmask(signal.SIG_BLOCK, []) != {signal.SIGTERM})
assert not os.waitpid(pid, 0)[1]
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGTERM}
"""
STAYS = """
import multiprocessing, threading
from app import process
threading.Thread(target=threading.Event().wait).start()
multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()
process.end_within(0.1, 3)
"""
STANDS = """
import signal
from app import process
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGVTALRM])
process.end_at_standstill(1_000_000, 2)()
signal.sigwait([signal.SIGVTALRM])  # nobody has called for a millisecond: all that a process knows that was stopped
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGVTALRM])
called = process.end_at_standstill(60 * 10**9, 2)
for _ in range(2):
    signal.raise_signal(signal.SIGVTALRM)
    assert 20 < signal.getitimer(signal.ITIMER_REAL)[0] <= 26
    called()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
signal.raise_signal(signal.SIGALRM)
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [(FORKS, 0), (EARLY, 0), (STAYS, 3), (STANDS, 14)],
    ids=["forked children", "one that is told at once", "a thread that stays", "a loop that stands still"],
)
def test_what_models_start_ends(code: str, status: int) -> None:
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == status
