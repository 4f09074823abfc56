"""Collects garbage, cycles of objects that models and libraries leave behind, where that disturbs least.

Nothing else runs during a collection, so what stays is frozen, that is, left out of it: all that is there when a model
has been built, loaded or unloaded.

    what is walked   when
    what is newest   a model is being built: often, and so never much of it
    the others       before and after a load; after an unload; when the process has grown by `growth` bytes
    everything       an unloaded model is still there; models have changed, and the server is idle
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from app import process
from app.machine import resident_bytes

log = logging.getLogger("starling")

_MIB = 1 << 20
_PART = 16  # of the memory limit: the growth after which garbage is looked for
_MOST_GROWTH = 256 * _MIB  # the most of it, and what it is if there is no limit
_IDLE_GROWTH = 16 * _MIB  # while idle, when a collection delays nobody
_LONG_S = 0.1  # a pause that is logged


class Collector:
    """One for the process: it sets the garbage collector's thresholds, and freezes objects. It does nothing before
    `begin`. Methods are called on the event loop, `building` on any thread.

    `limit`: bytes that the process may use; None: unknown. `growth`: bytes, see above. `count`, `seconds`, `longest_s`:
    of all collections since `begin`, also those that Python begins by itself.
    """

    def __init__(self, limit: int | None, resident: Callable[[], int] = resident_bytes) -> None:
        self.growth = _MOST_GROWTH if limit is None else min(_MOST_GROWTH, limit // _PART)
        self.count, self.seconds, self.longest_s = 0, 0.0, 0.0
        self._resident = resident
        self._begun = False
        self._started_s = 0.0  # when the collection that runs was started
        self._base = 0  # resident bytes after the last collection
        self._returning: asyncio.Future[None] | None = None  # freed memory to the system, on a helper thread
        self._stale = False  # there may be garbage among what is frozen
        self._busy = False  # some batches have ended since the last tick
        self._unloaded: list[weakref.ref[Any]] = []
        self._builds: set[object] = set()  # models that are being built; threads change it

    def begin(self) -> None:
        """The models have been loaded: exclude all that exists now from collections, and return what loads freed."""
        process.tune_garbage_collector()
        gc.callbacks.append(self._time)  # after the first collection, which nobody waits for
        self._begun = True
        self._return_freed()

    def close(self) -> None:
        if self._begun:
            self._begun = False
            gc.callbacks.remove(self._time)

    # models

    @contextmanager
    def building(self) -> Iterator[None]:
        """For a thread that builds a model. Walks what is not frozen, to make room; afterwards Python itself begins
        collections after few new objects.

        Imports create nearly nothing but objects that stay. Of the collections while transformers was imported, each
        stopped the server for 4 to 8 ms.
        """
        if not self._begun:
            yield
            return
        gc.collect()
        self._builds.add(build := object())
        process.collect_new_objects(often=True)
        try:
            yield
            gc.collect(0)
            gc.freeze()  # or the next collection would walk all of it
        finally:
            self._builds.discard(build)
            if not self._builds:
                process.collect_new_objects(often=False)

    def unloaded(self, parts: Sequence[object]) -> None:
        """A model consisting of these parts has been stopped. Its last users may still refer to it."""
        for part in parts:
            with suppress(TypeError):  # it has no weak references
                self._unloaded.append(weakref.ref(part))

    def models_changed(self) -> None:
        """A load or unload is over, and nobody refers to what was unloaded any more."""
        unloaded, self._unloaded = self._unloaded, []
        if not self._begun:
            return
        gc.collect()
        if _any_left(unloaded):
            self._collect_everything()
        else:
            gc.freeze()
        self._stale = True
        self._return_freed()

    # while serving

    def look(self) -> None:
        """Some batches have ended. Called every few milliseconds at most."""
        self._busy = True
        if self._begun and self._returning is None and self._resident() > self._base + self.growth:
            gc.collect()
            self._return_freed()

    def tick(self) -> None:
        """Called about once a second."""
        busy, self._busy = self._busy, False
        if busy or not self._begun or self._returning is not None:
            return
        if self._stale:
            self._stale = False
            self._collect_everything()
        elif self._resident() > self._base + _IDLE_GROWTH:
            gc.collect()
        else:
            return
        self._return_freed()

    def _return_freed(self) -> None:
        if self._returning is None:
            self._returning = asyncio.get_running_loop().run_in_executor(None, process.return_freed_memory)
            self._returning.add_done_callback(self._returned)

    def _returned(self, done: asyncio.Future[None]) -> None:
        self._returning, self._base = None, self._resident()

    def _collect_everything(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _time(self, phase: str, info: dict[str, int]) -> None:
        """Called by Python when a collection starts and stops."""
        if phase == "start":
            self._started_s = time.perf_counter()
            return
        seconds = time.perf_counter() - self._started_s
        self.count += 1
        self.seconds += seconds
        self.longest_s = max(self.longest_s, seconds)
        if seconds > _LONG_S:
            log.info("a garbage collection took %.3f s, in which nothing else ran", seconds)


def _any_left(parts: Sequence[weakref.ref[Any]]) -> bool:
    return any(part() is not None for part in parts)
