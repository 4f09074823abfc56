"""Compiles Python sources in a process of its own while a model is imported.

Where no bytecode is cached (a read-only image, PYTHONDONTWRITEBYTECODE) each module is compiled from source. That holds
the interpreter lock, and so stops the server: 98 ms for one file of what transformers imports. Reading the bytecode
takes 10 ms at most.
"""

from __future__ import annotations

import marshal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

#: Reads (source, path, optimization), answers with the code or None, until its input ends. No error is sent: who asked
#: compiles by itself then, and gets it.
_CHILD = """
import marshal, os, sys
getattr(os, "nice", int)(5)
asked, answers = sys.stdin.buffer, sys.stdout.buffer
try:
    while True:
        source, path, optimize = marshal.load(asked)
        try:
            code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
        except Exception:
            code = None
        marshal.dump(code, answers)
        answers.flush()
except (EOFError, BrokenPipeError, KeyboardInterrupt):
    pass  # the import or the server has ended
os._exit(0)  # an ordinary exit would try to write again
"""
_END_S = 5.0
_LEAST_BYTES = 16 << 10  # of a source: a smaller one takes some 3 ms

_compile: Any = SourceFileLoader.source_to_code
_here = threading.local()  # `child`: of the thread that imports; None until it has something to compile


@contextmanager
def compiling_aside() -> Iterator[None]:
    """Whatever this thread imports meanwhile is compiled in a child process, which ends with it."""
    setattr(SourceFileLoader, "source_to_code", _source_to_code)  # noqa: B010  mypy refuses to assign a method
    _here.child, _here.on = None, True
    try:
        yield
    finally:
        child, _here.child, _here.on = _here.child, None, False
        if child is not None:
            _end(child)


def _source_to_code(self: SourceFileLoader, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
    """In place of the method of the same name, in every thread."""
    if getattr(_here, "on", False) and isinstance(data, bytes) and len(data) > _LEAST_BYTES:
        code = _compiled(data, str(path), _optimize)
        if code is not None:
            return code
    made: CodeType = _compile(self, data, path, _optimize=_optimize)
    return made


def _compiled(source: bytes, path: str, optimize: int) -> CodeType | None:
    """None if it is no Python, or the child does not work; then no other is started."""
    try:
        if _here.child is None:
            # isolated: it finds nothing but the standard library
            command = [sys.executable, "-I", "-S", "-c", _CHILD]
            _here.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        _here.child.stdin.write(marshal.dumps((source, path, sys.flags.optimize if optimize < 0 else optimize)))
        _here.child.stdin.flush()
        code: CodeType | None = marshal.load(_here.child.stdout)
        return code
    except (OSError, EOFError, ValueError, TypeError):
        _here.on = False
        return None


def _end(child: Any) -> None:
    with child:  # which closes its pipes, and waits for it
        try:
            child.stdin.close()
            child.wait(_END_S)
        except (OSError, subprocess.TimeoutExpired):
            child.kill()
