"""Compiles Python sources in a process of its own while a model is imported.

Where no bytecode is cached (a read-only image, PYTHONDONTWRITEBYTECODE) each module is compiled from source. That holds
the interpreter lock, and so stops the server: 98 ms for one file of what transformers imports. Reading the bytecode
takes 10 ms at most.
"""

from __future__ import annotations

import marshal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from app.child import Child, compiled

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
            child.end()


def _source_to_code(self: SourceFileLoader, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
    """In place of the method of the same name, in every thread."""
    if getattr(_here, "on", False) and isinstance(data, bytes) and len(data) > _LEAST_BYTES:
        code = _compiled(data, str(path), _optimize)
        if code is not None:
            return code
    made: CodeType = _compile(self, data, path, _optimize=_optimize)
    return made


def _compiled(source: bytes, path: str, optimize: int) -> CodeType | None:
    """None if it cannot be compiled there: compiled here, too, it gets its error, if it has one under the limits that
    a model may have set here. Or if the child does not work; then no other is started.
    """
    try:
        if _here.child is None:
            _here.child = Child()
        code: CodeType = marshal.loads(
            _here.child.ask(compiled, source, path, sys.flags.optimize if optimize < 0 else optimize)
        )
        return code
    except (OSError, EOFError):
        _here.on = False
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return None
