"""What is imported for a model is compiled in another process, and is the same module, or the same error."""

from __future__ import annotations

import importlib
import marshal
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from app.models.sources import compiling
from app.models.sources.compiling import compiling_aside

LONG = "# " + "-" * (20 << 10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def here(*given: object, **options: object) -> None:
    raise AssertionError("compiled in this process")


def test_a_long_source_is_compiled_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "aside_long.py").write_text(
        f"{LONG}\nfrom __future__ import annotations\n\ndef where(x: int): return 7\n"
    )
    (folder / "aside_short.py").write_text("ONE = 1\n")
    compiled = []
    monkeypatch.setattr(
        compiling, "_compile", lambda self, data, path, **o: compiled.append(path) or compile(data, path, "exec")
    )
    with compiling_aside():
        module = importlib.import_module("aside_long")
        importlib.import_module("aside_short")
        child = compiling._here.child
        assert child.poll() is None
    assert child.returncode == 0
    assert [Path(path).name for path in compiled] == ["aside_short.py"]
    assert (module.where(1), module.where.__annotations__) == (7, {"x": "int"})
    assert module.where.__code__.co_filename == str(folder / "aside_long.py")


def test_an_error_is_that_of_the_source(folder: Path) -> None:
    (folder / "aside_wrong.py").write_text(f"{LONG}\nONE = = 1\n")
    with compiling_aside(), pytest.raises(SyntaxError) as caught:
        importlib.import_module("aside_wrong")
    assert (caught.value.filename, caught.value.lineno) == (str(folder / "aside_wrong.py"), 2)


@pytest.mark.parametrize("how", ["no reader", "no writer", "Ctrl-C"])
def test_a_child_whose_server_has_ended_says_nothing(how: str) -> None:
    """Its errors would be the last lines of the server's log."""
    command = [sys.executable, "-I", "-S", "-c", compiling._CHILD]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as child:
        asked: Any = child.stdin
        answers: Any = child.stdout
        asked.write(marshal.dumps((b"1", "a.py", 0)))
        asked.flush()
        assert marshal.load(answers) is not None
        if how == "no reader":
            answers.close()
            asked.write(marshal.dumps((b"1", "b.py", 0)))
            asked.flush()
        elif how == "no writer":
            asked.close()
        else:
            child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        assert (child.stderr.read(), child.wait(60)) == (b"", 0)


def test_without_a_child_it_is_compiled_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "aside_alone.py").write_text(f"{LONG}\nONE = 1\n")
    monkeypatch.setattr(sys, "executable", os.devnull)
    with compiling_aside():
        assert importlib.import_module("aside_alone").ONE == 1
