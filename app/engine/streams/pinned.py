"""Pinned host memory in whole pages.

torch's allocator rounds each pinned block up to a power of two, so that 513 MiB of slots take a whole GiB from all
other processes. (torch 2.13 has a setting against that, for all of a process.) So blocks from 1 MiB on are mapped here
and registered with the driver as they are. Smaller ones are left to torch, where rounding wastes less than they take.

A block that nobody refers to any more stays registered for the next model: a reload needs the same again, and the
thread that drops the last reference is the event loop as a rule, which must not wait for the driver. When a block is
wanted and none of these fits, they are all given back to the system first.
"""

from __future__ import annotations

import logging
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from math import prod

import numpy as np
import torch

from app.engine.pool import Allocate

log = logging.getLogger("starling.engine")

_LEAST = 1 << 20
_LOOSE = 8  # a block may be larger than what is wanted by one part in so many


class PinnedMemory:
    """`register` and `unregister` tell the driver of an address range, and raise RuntimeError where they cannot.

    `other` allocates small blocks, and all of them where registering fails. Any thread may allocate.
    """

    def __init__(
        self, register: Callable[[int, int], None], unregister: Callable[[int], None], other: Allocate
    ) -> None:
        self._register = register
        self._unregister = unregister
        self._other = other
        self._works = True
        self._lock = threading.Lock()  # never held while the driver is called: that takes up to seconds
        # Blocks that nobody refers to. They are added by whichever thread drops the last reference, at any moment,
        # perhaps in the midst of `allocate`: a deque needs no lock for that.
        self._free: deque[mmap.mmap] = deque()

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < _LEAST or not self._works:
            return self._other(shape, dtype)
        pages = self._reused(nbytes) or self._mapped(nbytes)
        if pages is None:
            return self._other(shape, dtype)
        array = np.frombuffer(pages, np.uint8)
        weakref.finalize(array, self._free.append, pages).atexit = False
        return torch.from_numpy(array)[:nbytes].view(dtype).view(shape)

    def _reused(self, nbytes: int) -> mmap.mmap | None:
        with self._lock:
            free = [self._free.popleft() for _ in range(len(self._free))]
            fitting = (pages for pages in free if nbytes <= len(pages) <= nbytes + nbytes // _LOOSE)
            found = min(fitting, key=len, default=None)
            if found is not None:
                self._free.extend(pages for pages in free if pages is not found)
                return found
        for pages in free:
            self._give_back(pages)
        return None

    def _mapped(self, nbytes: int) -> mmap.mmap | None:
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            self._register(_address(pages), size)
        except RuntimeError as exc:
            self._works = False
            log.warning("pinned memory takes up to twice what is needed: pages could not be registered: %s", exc)
            pages.close()
            return None
        return pages

    def _give_back(self, pages: mmap.mmap) -> None:
        try:
            self._unregister(_address(pages))
        except RuntimeError as exc:
            log.warning("pinned memory of %d MiB could not be given back: %s", len(pages) >> 20, exc)
        else:
            pages.close()


def _address(pages: mmap.mmap) -> int:
    return int(np.frombuffer(pages, np.uint8).ctypes.data)
