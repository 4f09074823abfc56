"""What is imported for a model is compiled in another process, and is the same module, or the same error."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from app.models.sources import imports
from app.models.sources.imports import compiling_aside

LONG = "# " + "-" * (20 << 10)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_a_long_source_is_compiled_elsewhere(folder, monkeypatch):
    (folder / "aside_long.py").write_text(
        f"{LONG}\nfrom __future__ import annotations\n\ndef where(x: int): return 7\n"
    )
    (folder / "aside_short.py").write_text("ONE = 1\n")
    compiled = []
    monkeypatch.setattr(
        imports, "_compile", lambda self, data, path, **o: compiled.append(path) or compile(data, path, "exec")
    )
    with compiling_aside():
        module = importlib.import_module("aside_long")
        importlib.import_module("aside_short")
        process = imports._here.child.process
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL
    assert [Path(path).name for path in compiled] == ["aside_short.py"]
    assert (module.where(1), module.where.__annotations__) == (7, {"x": "int"})
    assert module.where.__code__.co_filename == str(folder / "aside_long.py")


def test_an_error_is_that_of_the_source(folder):
    (folder / "aside_wrong.py").write_text(f"{LONG}\nONE = = 1\n")
    with compiling_aside(), pytest.raises(SyntaxError) as caught:
        importlib.import_module("aside_wrong")
    assert (caught.value.filename, caught.value.lineno) == (str(folder / "aside_wrong.py"), 2)


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="its compiler has a limit of its own")
def test_what_needs_a_higher_limit_than_the_childs_is_compiled_here(folder, monkeypatch):
    (folder / "aside_deep.py").write_text(f"{LONG}\ndef deep(a): return a{'.b' * 6000}\n")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        with compiling_aside():
            assert importlib.import_module("aside_deep").deep
    finally:
        sys.setrecursionlimit(limit)


def test_without_a_child_it_is_compiled_here(folder, monkeypatch):
    (folder / "aside_alone.py").write_text(f"{LONG}\nONE = 1\n")
    monkeypatch.setattr(sys, "executable", os.devnull)
    with compiling_aside():
        assert importlib.import_module("aside_alone").ONE == 1
