"""Profiles kept on disk between runs: one JSON file per model, device and number of threads.

Errors are logged once; the profile is then measured again. The file name is a digest of all that batch times depend on.
The largest batch is not in it: a profile of more rows than needed is cut, one of fewer is not used. A second file for
each profile holds pairs: how much the model is slowed beside others, by their architecture. A new profile does not
change the pairs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import fx, nn

from app.contract import Model
from app.engine.device import Device
from app.models.checks.calling import only_exceptions
from app.scheduler.estimates.pairs import Pair, parse_pair
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse, to_dict

log = logging.getLogger("starling.engine")

#: The key of a stored profile for what requests cost beside their batches, by format; `starling size --measure`
#: measures it.
FRONT = "front"
_CPUINFO = Path("/proc/cpuinfo")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """All that batch times depend on. `architecture` is a digest, see `architecture_of`."""

    model: str
    architecture: str
    device: str
    threads: int
    torch: str = torch.__version__
    format: int = 2  # of the file; profiles of another are measured again

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]
        return f"{self.model}-{digest}.json"


class ProfileCache:
    """The folder of profiles. It is made when the first is stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def load(self, key: ProfileKey, max_batch: int) -> Profile | None:
        """The profile of `key` up to `max_batch` rows; None if there is none that large. Reads a file."""
        profile = self._read(self.folder / key.file_name, parse)
        return profile.up_to(max_batch) if profile is not None and profile.max_batch >= max_batch else None

    def store(self, key: ProfileKey, profile: Profile) -> Path | None:
        """Write the profile. Returns None if that fails. Keeps the stored request costs if the new one has none."""
        before = self.load(key, 1)
        if before is not None and FRONT in before.extra:
            profile = replace(profile, extra={FRONT: before.extra[FRONT], **profile.extra})
        profile = replace(profile, model=key.model, device=key.device, threads=key.threads)
        return self._write(self.folder / key.file_name, to_dict(profile))

    def load_pairs(self, key: ProfileKey) -> tuple[Pair, ...]:
        """All pairs of the model. Reads a file."""
        return self._read(self.folder / f"beside-{key.file_name}", _pairs_of) or ()

    def store_pair(self, key: ProfileKey, pair: Pair) -> Path | None:
        """Store a pair, in place of an older one of the same two models. Returns None if that fails."""
        others = (
            one for one in self.load_pairs(key) if (one.model, one.architecture) != (pair.model, pair.architecture)
        )
        return self._write(self.folder / f"beside-{key.file_name}", pairs_to_dict(key, (*others, pair)))

    def _read(self, path: Path, parsed: Callable[[Any], T]) -> T | None:
        """The parsed file; None if it does not exist or cannot be read."""
        try:
            return parsed(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as exc:
            self._warn_once(f"{path} is not used: {exc}")
            return None

    def _write(self, path: Path, data: Mapping[str, Any]) -> Path | None:
        """Write a file, and make its folder, so that other processes never see half of it. None if that fails."""
        unfinished = path.with_suffix(f".{uuid.uuid4().hex}")  # not by its process: in each container that is 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(data, indent=1), encoding="utf-8")
            unfinished.replace(path)
        except OSError as exc:
            with suppress(OSError):
                unfinished.unlink()
            self._warn_once(f"profiles are not kept: {exc}; --profile-dir names another folder")
            return None
        return path

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            log.warning("%s", message)
        self._warned = True


def pairs_to_dict(key: ProfileKey, pairs: Iterable[Pair]) -> dict[str, Any]:
    """The content of a file of pairs."""
    beside = [pair.to_dict() for pair in pairs]
    return {"model": key.model, "device": key.device, "threads": key.threads, "beside": beside}


def _pairs_of(data: Any) -> tuple[Pair, ...]:
    if not isinstance(data, dict) or not isinstance(data.get("beside"), list):
        raise ValueError(f"beside: expected a list of pairs, got {data!r}")  # noqa: TRY004 - of a file's content
    return tuple(map(parse_pair, data["beside"]))


def default_folder() -> Path:
    """`starling/profiles` in the user's cache folder."""
    home = os.path.expanduser("~")  # "~" itself for a user without a home: then there is no place to write to
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home if home != "~" else "/", ".cache")
    return Path(cache) / "starling" / "profiles"


def key_of(model: Model, device: Device) -> ProfileKey:
    """The key of this model's profile on this device. Not for the event loop: it looks at every weight."""
    return ProfileKey(model.info.name, architecture_of(model), device_name(device), device.threads)


def device_name(device: Device) -> str:
    """The hardware of a device, without its settings (workers and threads)."""
    return cpu_name() if device.name.startswith("cpu") else device.name


def cpu_name() -> str:
    """This machine's processor."""
    try:
        found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"cpu {found[1].strip() if found else platform.machine()}, {os.cpu_count() or 1} cores"


def architecture_of(model: Model) -> str:
    """A digest of what the model computes, as far as can be seen: tensors, class, layers, shapes of weights.

    Weights are left out, because batch times do not depend on their values. A change of code alone is not seen; the
    scale from live batches corrects its effect. So is what a module's own `__repr__` or `state_dict` raises.
    """
    info = model.info
    parts: list[object] = [[(s.name, s.datatype, s.shape, s.bounds) for s in (*info.inputs, *info.outputs)]]
    for part in (model.call, *model.stages.calls):
        parts += _seen(part)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _seen(part: object) -> list[object]:
    """Of a model, or a stage of it, the layers with the code of an exported one, and the name, shape and type of each
    weight. What a quantized layer keeps is not tensors alone. Its class where the model's own code raises, which its
    calls do not need.
    """
    if not isinstance(part, nn.Module):
        return [getattr(part, "__qualname__", type(part).__qualname__)]
    try:
        with only_exceptions():
            layers = f"{part}{part.code if isinstance(part, fx.GraphModule) else ''}"
            kept = part.state_dict().items()
            return [layers, [(name, tuple(one.shape), str(one.dtype)) for name, one in kept if torch.is_tensor(one)]]
    except Exception:
        return [type(part).__qualname__]
