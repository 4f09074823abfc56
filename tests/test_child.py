"""A child process that calls functions for the server."""

from __future__ import annotations

import marshal
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from app.child import _CHILD, _PATH, Child, compiled


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.end()


def test_it_calls_functions_one_after_another(child: Child) -> None:
    assert child.ask(os.getpgid, 0) == child.ask(os.getpgid, 0) == child.process.pid  # Ctrl-C is for the server's group
    assert child.ask(os.getsid, 0) == os.getsid(0)  # or its low priority would not count against the server
    assert child.ask(sorted, [1, 2], reverse=True) == [2, 1]
    assert [child.ask(signal.getsignal, sent) for sent in (signal.SIGINT, signal.SIGTERM)] == [signal.SIG_IGN] * 2


def test_it_raises_what_the_function_raises_and_stays(child: Child) -> None:
    with pytest.raises(SyntaxError, match=r"\(a.py, line 1\)"):
        child.ask(compiled, b"1 = = 1", "a.py", 0)
    assert eval(marshal.loads(child.ask(compiled, b"one = 1", "a.py", 0)), here := {}) is None
    assert here["one"] == 1


def test_once_it_has_ended_it_says_so(child: Child) -> None:
    with pytest.raises(EOFError):
        child.ask(os.abort)
    assert child.process.returncode == -signal.SIGABRT


def test_it_finds_the_server_whatever_a_model_does_to_the_path_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the working folder are no modules of it."""
    (tmp_path / "app").mkdir()
    for name in ("pickle.py", "app/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    here = Child()
    assert here.ask(os.getcwd) == str(tmp_path)
    assert here.ask(compiled, b"", "a.py", 0)
    assert here.ask(eval, "__import__('sys').path") == _PATH
    here.end()


@pytest.mark.parametrize("how", ["no reader", "no writer"])
def test_a_child_whose_server_has_ended_says_nothing(how: str) -> None:
    """Its errors would be the last lines of the server's log."""
    question = pickle.dumps((os.getpid, (), {}))
    with subprocess.Popen([sys.executable, "-c", _CHILD, "nice"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        process.stdin.write(question)
        process.stdin.flush()
        assert pickle.load(process.stdout) == process.pid
        if how == "no reader":
            process.stdout.close()
            process.stdin.write(question)
            process.stdin.flush()
        else:
            process.stdin.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
