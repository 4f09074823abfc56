"""The imports of one load of a model's folder, apart from those of all other loads.

Its modules are in `sys.modules` below a package `starling_model_...`, and are found in three ways:

- Each has `__builtins__` of its own, whose `__import__` looks into the folder first.
- What its code puts on `sys.path` is taken off again, and is searched for its own imports only.
- Imports by a plain name (pickle, `importlib`) get the module from a finder, which knows the load that runs on this
  thread, or else the code that called.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import machinery
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

from app.errors import ConfigError
from app.user_code import is_installed

_PREFIX = "starling_model_"
_numbers = itertools.count()
_current: ContextVar[Namespace | None] = ContextVar("namespace", default=None)


class Namespace:
    """Of one load of `folder`. `name`: the package that its modules are in. `outside`: top-level packages from
    elsewhere that its code has imported.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.absolute()
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self.name = f"{_PREFIX}{digest}_{next(_numbers)}"
        self.outside: set[str] = set()
        self._path = [str(folder)]
        self._file = ""  # of the module that is the package itself
        self._origins: dict[str, str | None] = {}
        self._known_paths = frozenset(sys.path)
        self.builtins = {**vars(builtins), "__import__": self._import}
        _alive[self.name] = self
        for place, finder in ((0, _Own), (len(sys.meta_path), _PlainNames)):
            if finder not in sys.meta_path:
                sys.meta_path.insert(place, finder)

    @contextmanager
    def loading(self) -> Iterator[Namespace]:
        """While the folder's code is loaded on this thread."""
        before = frozenset(sys.modules)
        package = ModuleType(self.name)  # until there is a model.py
        package.__path__ = self._path
        sys.modules[self.name] = package
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)
            self._take_paths()
            for name, module in sys.modules.copy().items():  # at once: other threads import
                if not name.startswith(_PREFIX) and self._is_ours(module, new=name not in before):
                    sys.modules.pop(name, None)

    def run(self, path: Path) -> ModuleType:
        """Run a Python file as the package itself, so that `from . import x` finds files beside it."""
        path = path.absolute()
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        self._file = str(path)
        if str(path.parent) != self._path[0]:
            self._path.insert(0, str(path.parent))
        loader = _SourceLoader(self.name, str(path))
        locate = importlib.util.spec_from_file_location
        spec = locate(self.name, path, loader=loader, submodule_search_locations=self._path)
        assert spec is not None  # there is a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module  # dataclasses look themselves up there while the code runs
        loader.exec_module(module)
        return module

    def close(self) -> None:
        """Forget the modules. A model that still runs keeps those that it has."""
        for name in [key for key in list(sys.modules) if key == self.name or key.startswith(f"{self.name}.")]:
            sys.modules.pop(name, None)

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """`__import__` of the folder's code."""
        if level == 0:
            self._take_paths()
            top = name.partition(".")[0]
            if self.holds(top, (globals or {}).get("__file__")):
                # C code, as pickle's: it looks for the plain name next
                if type(fromlist) is list and current() is self:
                    return builtins.__import__(name, globals, locals)
                found = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist or (), 0)
                return found if fromlist else sys.modules[f"{self.name}.{top}"]
            self.outside.add(top)
        found = builtins.__import__(name, globals, locals, fromlist or (), level)
        return self._importlib() if found is importlib else found

    def _importlib(self) -> ModuleType:
        """`importlib` for the folder's code, whose `import_module` looks into the folder first."""
        ours = ModuleType("importlib")
        vars(ours).update(vars(importlib), import_module=self.import_module)
        return ours

    def import_module(self, name: str, package: str | None = None) -> Any:
        """As that of `importlib`, from the folder first."""
        if name.startswith("."):
            return importlib.import_module(name, package)
        return self._import(name, fromlist=("__name__",))  # of a list of names, any: else it returns the top package

    def holds(self, top: str, importer: object = None) -> bool:
        """Whether a module of this plain name is the folder's own. `importer`: the file that imports it: a module that
        is called like a library, and imports it, does not mean itself.
        """
        if top not in self._origins:
            spec = self.find(f"{self.name}.{top}", self._path)
            if spec is None or (spec.loader is None and _is_importable(top)):  # a folder without Python is no package
                self._origins[top] = None
            else:
                self._origins[top] = spec.origin or ""
        origin = self._origins[top]
        return origin is not None and (origin != importer or origin.endswith("__init__.py"))

    def find(self, fullname: str, path: Sequence[str]) -> ModuleSpec | None:
        """The spec of a module of this namespace in the folders `path`."""
        portion: ModuleSpec | None = None
        for entry in path:
            # a new finder each time: it remembers a folder's files by the second
            spec = machinery.FileFinder(entry, *_LOADERS).find_spec(fullname)
            if spec is not None and spec.loader is not None:
                if spec.origin == self._file and self.name in sys.modules:
                    return _existing(fullname, sys.modules[self.name], spec.origin)
                return spec
            portion = portion or spec
        return portion

    def _take_paths(self) -> None:
        """Take folders that were put on `sys.path` since this namespace began; not those of installed packages."""
        known = self._known_paths
        if known.issuperset(sys.path):
            return
        first = next((place for place, entry in enumerate(sys.path) if entry in known), 0)
        taken = [entry for entry in sys.path if entry not in known and not is_installed(entry)]
        front = [os.path.abspath(entry) for entry in taken if sys.path.index(entry) < first]
        back = [os.path.abspath(entry) for entry in taken if sys.path.index(entry) >= first]
        sys.path[:] = [entry for entry in sys.path if entry not in taken]
        self._known_paths = known.union(sys.path)
        self._path[:] = dict.fromkeys([*front, *self._path, *back])
        self._origins.clear()

    def _is_ours(self, module: ModuleType, *, new: bool) -> bool:
        """Whether a module under a plain name belongs to this load, or to another that has run on."""
        if str(getattr(module, "__name__", "")).startswith(_PREFIX):
            return True
        file = getattr(module, "__file__", None)
        if not new or not isinstance(file, str) or is_installed(file):
            return False
        return file.startswith(tuple(os.path.join(entry, "") for entry in self._path))


_alive: WeakValueDictionary[str, Namespace] = WeakValueDictionary()


def current() -> Namespace | None:
    """The namespace of the load that runs on this thread."""
    return _current.get()


def _namespace_of(name: object) -> Namespace | None:
    """The namespace that a module of this name is in."""
    return _alive.get(name.partition(".")[0]) if isinstance(name, str) and name.startswith(_PREFIX) else None


def _is_importable(top: str) -> bool:
    """Whether there is such a module outside of all models' folders."""
    found = machinery.PathFinder.find_spec(top)
    return top in sys.builtin_module_names or (found is not None and found.loader is not None)


# loaders


class _Prepared:
    """A loader that gives a module of a namespace its builtins, before its code runs."""

    def exec_module(self, module: ModuleType) -> None:
        if (namespace := _namespace_of(module.__name__)) is not None:
            vars(module)["__builtins__"] = namespace.builtins
        super().exec_module(module)  # type: ignore[misc]


class _BytecodeLoader(_Prepared, machinery.SourcelessFileLoader):
    pass


class _SourceLoader(_Prepared, machinery.SourceFileLoader):  # type: ignore[misc]  # typeshed: bases of one method differ
    """Compiles from source each time: cached bytecode is compared by whole seconds, too coarse for a reload after an
    edit, and a repository may be read-only.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


_LOADERS: Any = (
    (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
    (_SourceLoader, machinery.SOURCE_SUFFIXES),
    (_BytecodeLoader, machinery.BYTECODE_SUFFIXES),
)


class _Existing:
    """Gives a module that exists already another name in `sys.modules`. All else is its own loader's, as `get_data`."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._spec, "loader", None), name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put in that of the other name


def _existing(fullname: str, module: ModuleType, origin: str | None = None) -> ModuleSpec:
    loader: Any = _Existing(module)
    return ModuleSpec(fullname, loader, origin=origin, is_package=hasattr(module, "__path__"))


# finders, of `sys.meta_path`


class _Own:
    """Finds modules of namespaces by their full names, and those below a plain name that is in use for one."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if path is None:
            return None
        if (namespace := _namespace_of(fullname)) is not None:
            return namespace.find(fullname, path)
        parent, _, child = fullname.rpartition(".")
        known = getattr(sys.modules.get(parent), "__name__", None)
        if _namespace_of(known) is None:
            return None
        return _existing(fullname, importlib.import_module(f"{known}.{child}"))


class _PlainNames:
    """Finds a module by its plain name, if nobody else does, for the load that runs here or the code that called."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if path is not None:
            return None
        namespace = _current.get() or _of_caller()
        if namespace is None or not namespace.holds(fullname):
            return None
        return _existing(fullname, importlib.import_module(f"{namespace.name}.{fullname}"))


def _of_caller() -> Namespace | None:
    """The namespace of the innermost of the calling functions that is in one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (namespace := _namespace_of(frame.f_globals.get("__name__"))) is not None:
            return namespace
        frame = frame.f_back
    return None
