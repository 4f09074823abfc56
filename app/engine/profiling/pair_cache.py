"""Pairs kept on disk, beside the profiles: one file for each profile, with all that the model was measured beside.

A file is found by what the profile is found by: the model's name and architecture, the device, threads, and torch's
version. In it each pair names the other's architecture; device, threads and torch are the same for both. A profile
needs no such file, and measuring it again leaves the file as it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.engine.profiling.cache import Key, write_whole
from app.scheduler.estimates.fields import fault
from app.scheduler.estimates.pairs import Pair, parse_pair

log = logging.getLogger("starling.engine")


class PairCache:
    """The folder of profiles, as far as pairs go. Whatever goes wrong is logged once, and costs what was measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._complained = False

    def path(self, key: Key) -> Path:
        """Where the pairs of the model with this profile are."""
        return self.folder / f"beside-{key.file_name}"

    def load(self, key: Key) -> tuple[Pair, ...]:
        """All that the model was measured beside; nothing where there is no such file. Reads a file."""
        path = self.path(key)
        try:
            return _parse(json.loads(path.read_text(encoding="utf-8")), key)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError, RecursionError) as exc:
            self._complain(f"{path} is not used: {exc}")
            return ()

    def store(self, key: Key, pair: Pair) -> Path | None:
        """Keep a pair with the others of this model, in place of one of the same two; None when that cannot be done."""
        path = self.path(key)
        kept = [one for one in self.load(key) if (one.model, one.architecture) != (pair.model, pair.architecture)]
        try:
            write_whole(path, json.dumps(told(key, (*kept, pair)), indent=1))
        except OSError as exc:
            self._complain(f"pairs are not kept: {exc}; --profile-dir names another folder")
            return None
        return path

    def _complain(self, message: str) -> None:
        if not self._complained:
            log.warning("%s", message)
        self._complained = True


def told(key: Key, pairs: Iterable[Pair]) -> dict[str, Any]:
    """What a file holds."""
    beside = [pair.to_dict() for pair in pairs]
    return {"model": key.model, "device": key.device, "threads": key.threads, "beside": beside}


def _parse(data: object, key: Key) -> tuple[Pair, ...]:
    """Raises ValueError for what is no such file, or one of another model, device or number of threads."""
    if not isinstance(data, dict) or not isinstance(data.get("beside"), list):
        raise fault("beside", "a list of pairs", data)
    if (data.get("model"), data.get("device"), data.get("threads")) != (key.model, key.device, key.threads):
        raise ValueError(f"it is of {data.get('model')!r} on {data.get('device')!r}")
    return tuple(map(parse_pair, data["beside"]))
