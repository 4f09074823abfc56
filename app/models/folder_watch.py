"""`--watch`, for development: loads models that are new or were edited, and unloads removed ones."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

from app.contract import Catalog
from app.errors import ConfigError, StarlingError
from app.models.description.config import FILE_NAME
from app.models.model_files import ask
from app.models.repository import Repository

#: The files of a model's folder: modification time and size.
_Files = dict[Path, tuple[int, int]]
_LEFT_OUT = (".", "__pycache__")  # what their names begin with
_PATIENCE_S = 10  # then other models are looked at, while the catalog goes on: a model's code may hang

_log = logging.getLogger("starling.models")


class FolderWatch:
    """Loads a model when its files differ from those that were loaded and were the same in the last two looks, so that
    a half-copied folder is not loaded. A failed load is not repeated until a file changes. Unloads a model that was
    missing in two looks. A load that takes long holds up no other model.

    Models that exist at construction count as loaded. The `catalog` logs errors.
    """

    def __init__(self, repository: Repository, catalog: Catalog) -> None:
        self._repository = repository
        self._catalog = catalog
        self._seen: dict[str, _Files] = {}
        self._loaded = self._seen = self._files() or {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a look, unless the last one is still loading. Called on the loop at each tick of the rate monitor."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look(), name="watch-folders")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def look(self) -> None:
        """Look once, and load or unload what has changed. Logs unexpected errors."""
        try:
            found = await asyncio.to_thread(self._files)
            if found is not None:
                before, self._seen = self._seen, found
                for name in {**self._loaded, **found}:
                    if found.get(name) == before.get(name):
                        await self._follow(name, found.get(name))
        except Exception:
            _log.exception("the models' folders could not be watched")

    async def _follow(self, name: str, files: _Files | None) -> None:
        """Load or unload a model whose files were the same in two looks; None: it has none."""
        if files == self._loaded.get(name):
            return
        with suppress(StarlingError, TimeoutError):  # logged where it happened, and shown in the index
            if files is None:
                _log.info("model %s: has been removed", name)
                del self._loaded[name]
                await asyncio.wait_for(self._catalog.unload(name), _PATIENCE_S)
            else:
                _log.info("model %s: %s", name, "its files have changed" if name in self._loaded else "is new")
                self._loaded[name] = files
                await asyncio.wait_for(self._catalog.load(name), _PATIENCE_S)

    def _files(self) -> dict[str, _Files] | None:
        """The files of each model; None if the repository cannot be read. Blocks.

        Nothing has changed in a folder that cannot be read: its model is not to be unloaded for that.
        """
        found: dict[str, _Files] = {}
        try:
            folders = self._repository.folders()
        except ConfigError:
            return None
        for name, folder in folders.items():
            try:
                files = ask(_files_in, folder)
            except ConfigError:
                files = self._seen.get(name, {})
            if files:
                found[name] = files
        return found


def _files_in(folder: Path) -> _Files:
    """The files of a model, without hidden files and compiled Python. Empty if there is no model.toml.

    Links to folders are followed, each folder once: a mounted ConfigMap consists of links to hidden folders, and the
    hidden link that they lead through is replaced when it changes.
    """
    found: _Files = {}
    seen: set[tuple[int, int]] = set()

    def refuse(error: OSError) -> None:
        if not seen and not isinstance(error, FileNotFoundError):  # the folder itself
            raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        own = _status(Path(place))
        if own is None or (own.st_dev, own.st_ino) in seen:
            folders.clear()
            continue
        seen.add((own.st_dev, own.st_ino))
        folders[:] = [name for name in folders if not name.startswith(_LEFT_OUT)]
        for path in (Path(place, name) for name in names if not name.startswith(_LEFT_OUT)):
            if (status := _status(path)) is not None:
                found[path] = status.st_mtime_ns, status.st_size
    return found if any(path.name == FILE_NAME for path in found) else {}


def _status(path: Path) -> os.stat_result | None:
    """None if it has just been removed."""
    with suppress(OSError):
        return path.stat()
    return None
