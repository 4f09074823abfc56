"""Asks the file system about models' folders. Whatever it refuses is a ConfigError, so that one folder that cannot be
read, or that vanishes meanwhile, takes no other model down.

Paths stay as they are given: a link may lead into another process's root, where its target has another path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from app.errors import ConfigError

FILE, FOLDER, NOTHING, OTHER = "a file", "a folder", "nothing", "a pipe or device"
_POINTER, _LONGEST_POINTER = b"version https://git-lfs.github.com/", 1024
_T = TypeVar("_T")


def ask(question: Callable[[Path], _T], path: Path) -> _T:
    """`question(path)`. Raises ConfigError that names the path and what the file system says."""
    try:
        return question(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def kind_of(path: Path) -> str:
    """What the path leads to, by name. Raises ConfigError, also for a link that leads nowhere."""
    return ask(_kind, path)


def leads_to(path: Path, kind: str, *, unread: bool = False) -> bool:
    """Whether the path leads to this kind of thing; `unread` where that cannot be told."""
    try:
        return kind_of(path) == kind
    except ConfigError:
        return unread


def file_at(path: Path) -> Path:
    """The path, if it leads to a file that git-lfs has fetched. Raises ConfigError: to open a named pipe, for one,
    would wait for ever.
    """
    kind = kind_of(path)
    if kind != FILE:
        raise ConfigError(f"{path}: expected a file, got {kind}")
    if ask(lambda place: place.stat().st_size < _LONGEST_POINTER and place.read_bytes().startswith(_POINTER), path):
        raise ConfigError(f"{path}: expected a file, got a pointer of git-lfs to it: `git lfs pull` fetches it")
    return path


def entries_of(folder: Path) -> list[Path]:
    """What is in the folder, in order of names. Raises ConfigError."""
    return sorted(ask(lambda place: list(place.iterdir()), folder))


def _kind(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise OSError(f"it is a link to {os.readlink(path)}, which is not there") from None
        return NOTHING
    return FILE if stat.S_ISREG(mode) else FOLDER if stat.S_ISDIR(mode) else OTHER
