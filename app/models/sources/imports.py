"""Imports for a source: a Python file beside model.toml, an installed package, an optional library.

Explains why a user's package was not found: it is not on the path, or it is called `app`, as Starling's own is. And
says which packages have changed since this process imported them: a load does not read them again.
"""

from __future__ import annotations

import importlib
import marshal
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from app.child import Child, compiled
from app.errors import ConfigError, not_installed, presentable
from app.models.sources.namespace import Namespace, current
from app.user_code import place_of

#: Our package.
OURS = Path(__file__).resolve().parents[2]

#: Held while anything is imported for a model: models load on several threads, and a package that replaces itself
#: during its import, as transformers does, is incomplete for other threads meanwhile.
_IMPORTING = threading.RLock()

#: Held while tracing or transformers replaces methods of a library's classes: two at once would restore the wrong ones.
#: And while a source builds a network: as transformers reads weights, `torch.nn.init` does nothing in any thread.
#: It is reentrant, because a factory may call `from_pretrained`.
PATCHING = threading.RLock()
_LONGEST_BUILD_S = 60.0  # longer ones are downloads, which replace nothing, so others stop waiting
_MOST_NAMES = 20  # of callables that an error lists
_SHORT_BUILD_S = 1.0  # without transformers, nothing is replaced

#: The oldest releases that serve, as in pyproject.toml, which binds only what is installed by its extras.
_OLDEST = {"transformers": (5, 17), "onnxruntime": (1, 24)}

#: By file of an imported module: its modification time and size when a load first saw it.
_seen: dict[str, tuple[int, int]] = {}

_LEAST_BYTES = 16 << 10  # of a source to compile aside: a smaller one takes some 3 ms
_compile: Any = SourceFileLoader.source_to_code
_here = threading.local()  # `child`: of the thread that imports; None until it has something to compile


@contextmanager
def held(lock: threading.RLock, wait_s: float | None = None) -> Iterator[bool]:
    """Hold a lock, if it comes free in so many seconds, and say whether it is held. None: for as long as a model's own
    code may run, which may be slow: short unless transformers, which replaces methods, has been imported.
    """
    if wait_s is None:
        wait_s = _LONGEST_BUILD_S if "transformers" in sys.modules else _SHORT_BUILD_S
    taken = lock.acquire(timeout=wait_s)
    try:
        yield taken
    finally:
        if taken:
            lock.release()


def optional(module: str) -> ModuleType:
    """Import a library that only some models need. Raises ConfigError that says what to install."""
    top = module.partition(".")[0]
    try:
        with _IMPORTING:
            library = importlib.import_module(top)
            if (oldest := _OLDEST.get(top)) and tuple(map(int, library.__version__.split(".")[:2])) < oldest:
                raise not_installed(f"{top} {library.__version__}", f"'{top}>={oldest[0]}.{oldest[1]}'", "is too old")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top:
            raise
        raise not_installed(top) from None


def import_callable(module: str, name: str, folder: Path) -> Any:
    """`name`, dots allowed, in a file `model.py` of the folder or in a package. Raises what the code raises."""
    with held(_IMPORTING):
        namespace = current() or Namespace(folder)
        # a package by way of the namespace: of a plain name, `sys.modules` may have that of another model that loads
        found: Any = namespace.run(folder / module) if module.endswith(".py") else namespace.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            other = _shadowed(module) or _instead(found)
            raise ConfigError(f"expected a callable {name!r} in {module}, which has none of that name{other}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"expected {name!r} in {module} to be callable, got {type(found).__name__}")
    return found


def _instead(module: Any) -> str:
    """The callables that a module defines itself, for an error; "" of anything else."""
    if not isinstance(module, ModuleType):
        return ""
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return f", but {', '.join(own[:_MOST_NAMES])}" if own else ""


# why an import failed


def source_hint(error: BaseException, source: str) -> str:
    """A hint for the message of an error that a model's source raised; "" for most errors."""
    if isinstance(error, TypeError) and not place_of(error):  # of the call itself
        return "; it is called with `kwargs` of model.toml alone, and returns the model that is then called with inputs"
    if not isinstance(error, ImportError) or not error.name:
        return ""
    package, wanted = error.name.partition(".")[0], source.partition(":")[0].partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package == wanted != OURS.name:
        return "; install the package where the server runs, or put the folder that holds it on PYTHONPATH"
    return _shadowed(error.name)


def _shadowed(module: str) -> str:
    """A hint for a `module` that was looked for in our package instead of the user's; "" for other names."""
    return f"; app is Starling's own package, {OURS}: rename yours" if module.partition(".")[0] == OURS.name else ""


# packages that have changed


def edited_packages(packages: Collection[str]) -> str:
    """A sentence on those of `packages` that were edited since; "" if there are none. Looks at all new files, once a
    load, because a package may be imported long before the model that uses it.
    """
    found: dict[str, str] = {}
    for name, module in sys.modules.copy().items():  # at once: other threads import
        file, package = getattr(module, "__file__", None), name.partition(".")[0]
        if not isinstance(file, str) or (file in _seen and package not in packages):
            continue
        with suppress(OSError, ValueError):
            status = os.stat(file)
            now = status.st_mtime_ns, status.st_size
            if _seen.setdefault(file, now) != now and package in packages:
                found.setdefault(package, file)
    if not found:
        return ""
    which = ", ".join(f"{package} ({file})" for package, file in sorted(found.items()))
    return presentable(
        f"changed since the server imported it, and not read again: {which}; restart the server to use it"
    )


# compiling in another process


@contextmanager
def compiling_aside() -> Iterator[None]:
    """Whatever this thread imports meanwhile is compiled in a child process, which ends with it.

    Where no bytecode is cached (a read-only image, PYTHONDONTWRITEBYTECODE) each module is compiled from source. That
    holds the interpreter lock, and so stops the server: 98 ms for one file of what transformers imports. Reading the
    bytecode takes 10 ms at most.
    """
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
