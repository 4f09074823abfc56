"""Settings of the process and of the thread that a model's code may change, and with them the answers of all models.

They are compared after a model's code was imported and built, after each batch that tries it, and when a batch fails:
each batch would cost microseconds. A model that was found to change some has them put back after each of its batches.
"""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import os
import random
import socket
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from app.models.sources.imports import PATCHING, held

_UNKNOWN = object()
_OWN_LIMIT, _COMPILERS_LIMIT = sys.getrecursionlimit(), 2000


class Setting(NamedTuple):
    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]

    def now(self) -> Any:
        try:
            return self.get()
        except (OSError, RuntimeError):  # of a folder that was removed; of what was set by torch's newer switches
            return _UNKNOWN


def _put_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None: without a mode that costs time


_paused = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, on one thread at a time. That is no change of a setting, whoever compares it."""
    global _paused
    collects = _paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        _paused = False


def _collects() -> bool:
    return _paused or gc.isenabled()


def _errors() -> list[Any]:
    """The filters that turn warnings into errors. Others do no harm, and libraries add some when they are imported."""
    return [one for one in warnings.filters if one[0] == "error"]


def _put_errors(before: list[Any]) -> None:
    # in place: Python's own code has this list
    warnings.filters[:] = [one for one in warnings.filters if one[0] != "error" or one in before]  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


class _Handlers(list[logging.Handler]):
    """Equal if the first, which is the server's, is the same, and set the same: those that a model adds do no harm."""

    def __init__(self) -> None:
        super().__init__(logging.root.handlers)
        self.first = [(one.level, one.formatter) for one in self[:1]]

    def __eq__(self, other: Any) -> bool:
        return bool(self[:1] == other[:1] and self.first == other.first)


def _put_handlers(before: _Handlers) -> None:
    logging.root.handlers[:] = before
    for one, (level, formatter) in zip(before, before.first, strict=False):
        one.setLevel(level)
        one.setFormatter(formatter)


_OURS = ("starling", "uvicorn", "asyncio")  # loggers that write the server's lines


def _loggers() -> Iterator[logging.Logger]:
    """All: loops over them set levels, and dictConfig turns off what it does not name."""
    return (one for one in logging.root.manager.loggerDict.copy().values() if isinstance(one, logging.Logger))


def _levels() -> dict[str, tuple[int, bool, bool]]:
    return {one.name: (one.level, one.disabled, one.propagate) for one in _loggers() if one.name.startswith(_OURS)}


def _put_levels(before: dict[str, tuple[int, bool, bool]]) -> None:
    for one in _loggers():
        one.disabled = False
        if one.name.startswith(_OURS):  # a loop that names a logger makes it, too
            level, _, one.propagate = before.get(one.name, (logging.NOTSET, False, True))
            one.setLevel(level)


def _recursion_limit() -> int:
    """The limit. What torch's compiler raises it to, whatever it compiles, and leaves, counts as the process's own."""
    limit = sys.getrecursionlimit()
    return _OWN_LIMIT if limit == _COMPILERS_LIMIT else limit


_METHOD = multiprocessing.get_all_start_methods()[0]  # Python's default, and so the server's


def _start_method() -> str:
    """The start method of processes. Python lets a process set it once, and the default counts, once it is used as by
    a progress bar: after this it can be set.
    """
    method = multiprocessing.get_start_method(allow_none=True) or _METHOD
    if method == _METHOD:
        multiprocessing.set_start_method(None, force=True)
    return method


def _put_start_method(method: str) -> None:
    multiprocessing.set_start_method(None if method == _METHOD else method, force=True)


SETTINGS = (
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch's default device", torch.get_default_device, _put_device),
    Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("torch's deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting("torch's autocast", partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    Setting("torch's precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    Setting("numpy's handling of errors", np.geterr, lambda before: np.seterr(**before)),
    Setting("the working folder", os.getcwd, os.chdir),
    Setting("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda one: locale.setlocale(locale.LC_ALL, one)),
    Setting("the recursion limit", _recursion_limit, sys.setrecursionlimit),
    Setting("warnings that are errors", _errors, _put_errors),
    Setting("the level of logging.disable", lambda: logging.root.manager.disable, logging.disable),
    Setting("the level of the log", lambda: logging.root.level, logging.root.setLevel),
    Setting("the handlers of the log", _Handlers, _put_handlers),
    Setting("the levels of the server's log", _levels, _put_levels),
    Setting("the garbage collection", _collects, lambda before: gc.enable() if before else gc.disable()),
    # Python cuts it to microseconds: without the half, what it has returned would become one less each time
    Setting("the interval between threads", sys.getswitchinterval, lambda one: sys.setswitchinterval(one + 0.5e-6)),
    Setting("the timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Setting("the start method of processes", _start_method, _put_start_method),
)


_builds = 0  # of models, that have ended


@dataclass(frozen=True, slots=True, eq=False)
class _TorchSeed:
    """Two are equal if the seed is: drawing changes the state. Or if a model was built between: it may have seeded."""

    seed: int = field(default_factory=torch.initial_seed)
    state: torch.Tensor = field(default_factory=torch.get_rng_state)
    builds: int = field(default_factory=lambda: _builds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TorchSeed) and (self.seed == other.seed or self.builds != other.builds)


#: Of a batch. A model that seeds torch once, when it is built, does no harm.
OF_BATCHES = (*SETTINGS, Setting("torch's seed", _TorchSeed, lambda before: torch.set_rng_state(before.state)))
_SEEDS = (
    Setting("numpy's seed", lambda: np.random.get_state(), np.random.set_state),  # models may use it
    Setting("random's seed", random.getstate, random.setstate),
)


class ProcessState:
    """The values of settings when it was made, on this thread."""

    def __init__(self, settings: Collection[Setting] = SETTINGS) -> None:
        self._before = [(setting, setting.now()) for setting in settings]

    @classmethod
    def unless_one_builds(cls, settings: Collection[Setting] = SETTINGS) -> Self | None:
        """None while a model is being built: libraries change settings for a moment then, and put them back."""
        with held(PATCHING, 0.0) as alone:
            return cls(settings) if alone else None

    def put_back(self, *, always: bool = False) -> list[tuple[Setting, Any]]:
        """Put back what has changed, unless another thread builds a model (`always`: this one has built one). Returns
        what it was changed to.
        """
        global _builds
        with held(PATCHING, 0.0) as alone:
            if not (alone or always):
                return []
            _builds += always
            changed = []
            for setting, before in self._before:
                now = setting.now()
                if before is not _UNKNOWN and not _equal(now, before):
                    with suppress(OSError, ValueError, RuntimeError):  # the folder is gone, for one
                        setting.put(before)
                    changed.append((setting, now))
            return changed


class SeedWatch:
    """Tells seeding from drawing: a batch that seeds leaves the same state behind as the batch before."""

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._after: list[Any] = []

    def begin(self) -> None:
        random.random()  # so that the state is not that of the last end
        np.random.random()
        self._before = [setting.get() for setting in _SEEDS]

    def end(self) -> list[tuple[Setting, Any]]:
        """What the batch has seeded; it is as before again."""
        after = [setting.get() for setting in _SEEDS]
        last, self._after = self._after, after
        both = zip(_SEEDS, self._before, last or self._before, after, strict=True)
        seeded = [(one, was) for one, was, old, now in both if _equal(now, old) and not _equal(now, was)]
        for setting, before in seeded:
            setting.put(before)
        return [(setting, "the same") for setting, _ in seeded]


def named(changed: Collection[tuple[Setting, Any]]) -> str:
    """What was changed, and to what, as text."""
    return ", ".join(f"{setting.name} to {getattr(value, 'seed', value)}" for setting, value in changed)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):  # a logger may be new
        return bool(one.items() >= other.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
