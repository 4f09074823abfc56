"""Model repositories: which folders hold a model, and in which versions.

`<repo>/<name>/model.toml` is version 1 of a model; `<repo>/<name>/<N>/model.toml` is its version N. The package ships
two sets: `demo` and `bench`. Folders are read again at each call, so a new model can be loaded while the server runs.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from app.contract import ModelSource
from app.errors import ConfigError, naming
from app.models.description.config import FILE_NAME
from app.models.model_files import FILE, FOLDER, NOTHING, entries_of, file_at, kind_of, leads_to

_HERE = Path(__file__).parent
_BENCH = _HERE.parents[1] / "loadtest" / "models"  # installed beside app/
_DEMO = {"digits": _HERE / "demo" / "digits", "echo": _HERE / "demo" / "echo"}

#: The sets that ship: name -> folder of each model.
SETS: dict[str, dict[str, Path]] = {
    "demo": _DEMO,
    "bench": _DEMO | {name: _BENCH / name for name in ("mlp", "encoder", "resnet18", "lstm", "generate", "writer")},
}

#: What a model may be called.
NAME = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,255}")  # no file system takes longer names
_VERSION = re.compile(r"[1-9][0-9]*")
_log = logging.getLogger("starling.models")


class Repository:
    """The models of one folder or shipped set, and those named one by one.

    `models` is the name of a set or a folder (`./demo` for a folder called demo; None for no folder at all). A folder
    that itself holds model.toml, or nothing but numbered versions, is one model under the folder's name. Each of
    `extra` is `NAME=SOURCE` and beats a model of that name in the folder. Raises ConfigError when a folder is missing
    or a name is not made of letters, digits, `_`, `.` and `-`.
    """

    def __init__(self, models: str | Path | None, extra: Iterable[str] = ()) -> None:
        self._root: Path | None = None
        self._named: dict[str, Path] = {}
        self._ignored: set[Path] = set()  # and logged
        if isinstance(models, str) and models in SETS:
            self._named = dict(SETS[models])
        elif models is not None:
            folder = Path(models)
            if not _is_folder("models", folder):
                wanted = f"a folder, a model's file or one of the sets {', '.join(SETS)}"
                raise ConfigError(f"models: expected {wanted}, got {str(models)!r}")
            if _is_one_model(folder):
                self._named[name_of(folder)] = folder
            else:
                self._root = folder
        seen: set[str] = set()
        for text in extra:
            name, folder = _parse_extra(text)
            if name in seen:
                raise ConfigError(f"model: {name!r} is named twice")
            seen.add(name)
            hidden = self._named.get(name) or (self._root / name if self._root is not None else folder)
            if hidden != folder and _versions(name, hidden):
                _log.warning("model %s: %s is served, as --model says, and hides %s", name, folder, hidden)
            self._named[name] = folder

    def scan(self, *, required: bool = False) -> dict[str, list[ModelSource]]:
        """All models now in the repository, by name; the versions of each, lowest first.

        A folder without a model is logged and left out. What cannot be read is a version with an `error`. Raises
        ConfigError if the repository cannot be read, or if it holds no model although one is `required`.
        """
        found: dict[str, list[ModelSource]] = {}
        for name, folder in self.folders().items():
            versions = _versions(name, folder)
            if versions:
                found[name] = versions
            else:
                _log.warning("%s: ignored: neither %s nor a numbered folder with one", folder, FILE_NAME)
        if required and not found:
            raise ConfigError(
                f"models: no model found in {str(self._root)!r}: expected NAME/{FILE_NAME} or "
                f"NAME/VERSION/{FILE_NAME}; with --model-control, an admin key or --watch the server starts without one"
            )
        return dict(sorted(found.items()))

    def sources(self, name: str) -> list[ModelSource]:
        """The versions of one model, lowest first; none for an unknown model."""
        folder = self._named.get(name)
        if folder is None and self._root is not None and NAME.fullmatch(name):
            folder = self._root / name
        return _versions(name, folder) if folder is not None else []

    def folders(self) -> Mapping[str, Path]:
        """The folders that may hold a model, and what cannot be read, by name. One that no model can have is logged
        once. Raises ConfigError as `scan` does.

        No hidden ones: a trash, snapshots, what a ConfigMap's links lead to.
        """
        entries = [] if self._root is None else entries_of(self._root)
        found = {entry for entry in entries if entry.name[0] != "." and leads_to(entry, FOLDER, unread=True)}
        ignored = {entry for entry in found if not NAME.fullmatch(entry.name)}
        for entry in sorted(ignored - self._ignored):
            _log.warning("%s: ignored: a model's name has letters, digits, '_', '.' and '-' only", entry)
        self._ignored |= ignored
        return {**{entry.name: entry for entry in sorted(found - ignored)}, **self._named}


def _parse_extra(text: str) -> tuple[str, Path]:
    name, equals, source = text.partition("=")
    if not equals or not source:
        raise ConfigError(f"model: expected NAME=SOURCE, got {text!r}")
    if not NAME.fullmatch(name):
        raise ConfigError(f"model: expected a name of letters, digits, '_', '.' and '-', got {name!r}")
    folder = Path(source)
    if not _is_folder(f"model {name}", folder) or not _versions(name, folder):
        wanted = f"a model's file, or a folder with {FILE_NAME} or with numbered versions"
        raise ConfigError(f"model {name}: expected {wanted}, got {source!r}")
    return name, folder


def _is_folder(field: str, place: Path) -> bool:
    """Whether the place that a setting names is a folder. Raises ConfigError where the system does not tell."""
    with naming(field):
        return kind_of(place) == FOLDER


def _is_one_model(folder: Path) -> bool:
    """Whether the folder is a model's own: it holds model.toml, or models in numbered folders and in no others."""
    try:
        if kind_of(folder / FILE_NAME) == FILE:
            return True
        entries = entries_of(folder)
    except ConfigError:
        return False  # reading it as a repository will raise the error
    models = [one.name for one in entries if one.name[0] != "." and leads_to(one / FILE_NAME, FILE)]
    return bool(models) and all(_VERSION.fullmatch(name) for name in models)


def name_of(place: Path) -> str:
    """The name of the model in a folder or file. Raises ConfigError."""
    path = Path(os.path.abspath(place))  # without links: the name is that of the link
    name = path.stem if path.is_file() else path.name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"models: expected a name of letters, digits, '_', '.' and '-', got {name!r}; "
            f"starling serve --model NAME={shlex.quote(str(place))} gives it another"
        )
    return name


def _versions(name: str, folder: Path) -> list[ModelSource]:
    """The versions in a model's folder; model.toml beats numbered folders beside it."""
    only = _version(name, 1, folder)
    if only is not None or not leads_to(folder, FOLDER):
        return [] if only is None else [only]
    try:
        numbered = [entry for entry in entries_of(folder) if _VERSION.fullmatch(entry.name)]
    except ConfigError as error:
        return [ModelSource(name, 1, folder, str(error))]
    versions = []
    for entry in sorted(numbered, key=lambda entry: int(entry.name)):
        version = _version(name, int(entry.name), entry)
        if version is not None:
            versions.append(version)
        elif leads_to(entry, FOLDER):
            _log.warning("%s: ignored: no %s", entry, FILE_NAME)
    return versions


def _version(name: str, number: int, folder: Path) -> ModelSource | None:
    """The version in a folder, with an `error` if that cannot be told; None without a model.toml in it."""
    path = folder / FILE_NAME
    try:
        there = kind_of(folder) == FOLDER and kind_of(path) != NOTHING and file_at(path)
        return ModelSource(name, number, folder) if there else None
    except ConfigError as error:
        return ModelSource(name, number, folder, str(error))
