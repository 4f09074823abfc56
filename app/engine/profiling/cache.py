"""Profiles kept on disk between runs: one JSON file per model, device and number of threads.

A cache: whatever goes wrong with it is logged once and costs no more than measuring again. A file is found by what a
batch time depends on: the model's name and architecture, the device, threads, and torch's version. The largest batch is
not part of that; a profile of more rows than are wanted is cut, one of fewer is not used.

`Known` is what is known of a model's batch times, from here or elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.contract import Model
from app.engine.device import Device
from app.scheduler.estimates.fields import to_ms
from app.scheduler.estimates.profile import ModelProfile, parse

log = logging.getLogger("starling.engine")

_CPUINFO = Path("/proc/cpuinfo")


class Origin(StrEnum):
    """Where a model's batch times are from."""

    GUESS = "guess"  # it raised on the rows that warm-up made up
    WARM_UP = "warm-up"
    CACHE = "cache"
    MEASURED = "measured"
    STALE = "stale"  # from the cache, and contradicted by batches of calls


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model's batch times, and from where. `made`: UTC, ISO 8601."""

    profile: ModelProfile
    origin: Origin
    made: str = ""

    def told(self) -> dict[str, Any]:
        """For the statistics: all but `batch_ms`, which stands beside it. Milliseconds."""
        profile, line = self.profile, self.profile.fit()
        return {
            "origin": self.origin,
            "made": self.made,
            "lengths": profile.extra.get("lengths", {}),
            "error": {str(size): round(error, 4) for size, error in enumerate(profile.errors, 1)},
            "handover_ms": None if profile.handover_ns is None else profile.handover_ns / 1e6,
            "concurrency_ms": _ms(profile.concurrency_ns.items()),
            "length_ms": _ms(profile.by_length),
            "stages": [
                {
                    "batch_ms": to_ms(part.batch_ns),
                    "concurrency_ms": _ms(part.concurrency_ns.items()),
                    "length_ms": _ms(part.by_length),
                }
                for part in profile.stages
            ],
            "fit": {"alpha_ms": line.alpha_ns / 1e6, "beta_ms": line.beta_ns / 1e6, "residual": line.residual},
            "best_batch": profile.best,
            "best_rows_per_s": profile.peak,
        }


@dataclass(frozen=True, slots=True)
class Key:
    """What batch times depend on. `architecture` is a digest, see `architecture_of`."""

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
        self._complained = False

    def load(self, key: Key, max_batch: int) -> ModelProfile | None:
        """The profile of `key` up to `max_batch` rows, or None where there is none that large. Reads a file."""
        path = self.folder / key.file_name
        try:
            profile = parse(json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as exc:
            self._complain(f"{path} is not used: {exc}")
            return None
        if (profile.model, profile.device, profile.threads) != (key.model, key.device, key.threads):
            self._complain(f"{path} is not used: it is of {profile.model!r} on {profile.device!r}")
            return None
        return profile.up_to(max_batch) if profile.max_batch >= max_batch else None

    def store(self, key: Key, profile: ModelProfile) -> Path | None:
        """Write the profile; None when that cannot be done."""
        profile = replace(profile, model=key.model, device=key.device, threads=key.threads)
        path = self.folder / key.file_name
        try:
            write_whole(path, json.dumps(profile.to_dict(), indent=1))
        except OSError as exc:
            self._complain(f"profiles are not kept: {exc}; --profile-dir names another folder")
            return None
        return path

    def suggestion(self, model: str, device: str, precision: str = "fp32") -> dict[str, Any] | None:
        """What the newest profile of a model on this hardware suggests, whatever its threads. Reads all its files."""
        newest: tuple[str, dict[str, Any]] | None = None
        for path in sorted(self.folder.glob(f"{model}-*.json")):
            try:
                profile = parse(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, RecursionError):
                continue  # said when the model is loaded
            made, told = str(profile.extra.get("made", "")), profile.extra.get("suggested")
            computed = profile.extra.get("precision", "fp32")
            if (profile.model, profile.device, computed) == (model, device, precision) and isinstance(told, dict):
                newest = max(newest or (made, told), (made, told), key=lambda one: one[0])
        return newest[1] if newest else None

    def _complain(self, message: str) -> None:
        if not self._complained:
            log.warning("%s", message)
        self._complained = True


def write_whole(path: Path, text: str) -> None:
    """Write a file, and its folder if need be, so that another process never sees half of it. Raises OSError."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def default_folder() -> Path:
    """`starling/profiles` in the user's cache folder."""
    home = os.path.expanduser("~")  # "~" itself for a user without a home: then there is no place to write to
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home if home != "~" else "/", ".cache")
    return Path(cache) / "starling" / "profiles"


def key_of(model: Model, device: Device) -> Key:
    """Where the profile of this model on this device is kept. Not for the event loop: it looks at every weight."""
    return Key(model.info.name, architecture_of(model), device_name(device), device.threads)


def device_name(device: Device) -> str:
    """The hardware behind a device, without what may be set: workers and threads."""
    return cpu_name() if device.name.startswith("cpu") else device.name


def cpu_name() -> str:
    """This machine's processor."""
    try:
        found = re.search(r"^model name\s*: (.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"cpu {found[1].strip() if found else platform.machine()}, {os.cpu_count() or 1} cores"


def architecture_of(model: Model) -> str:
    """A digest of what the model computes, as far as it shows: tensors, class, layers, shapes of weights.

    Not of the weights: batch times do not depend on them. A change of code alone does not show; the scale that workers'
    own times keep true takes care of that.
    """
    info, call = model.info, model.call
    parts: list[object] = [[(s.name, s.datatype, s.shape, s.bounds) for s in (*info.inputs, *info.outputs)]]
    if isinstance(call, nn.Module):
        parts.append(str(call))
        parts.append([(name, tuple(weight.shape), str(weight.dtype)) for name, weight in call.state_dict().items()])
    else:
        parts.append(getattr(call, "__qualname__", type(call).__qualname__))
    if model.stages:  # where it is cut
        parts.append([_shape_of(stage) for stage in model.stages])
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _shape_of(stage: object) -> str:
    """What a stage looks like: its layers, of an exported one its code."""
    return f"{stage}{getattr(stage, 'code', '')}" if isinstance(stage, nn.Module) else type(stage).__qualname__


def _ms(tables: Iterable[tuple[int, tuple[int, ...]]]) -> dict[str, dict[str, float]]:
    return {str(key): to_ms(times) for key, times in tables}
