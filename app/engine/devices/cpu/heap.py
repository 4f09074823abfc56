"""The C library's heap: memory that a batch has freed is kept for the next one.

glibc maps large blocks one by one and gives them back when they are freed. From which size on, it learns from the
blocks that are freed, up to 32 MiB; until then every batch pays for its activations page by page. A model that only
ever runs small batches stays there: a convolutional network at one row served 53 rows/s, and 69 with the threshold set
to where it would end up (`python -m loadtest.bench.heap`).
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names for them
_MMAP_BYTES = 32 << 20  # the most that glibc takes, and comes to by itself
_TRIM_BYTES = 2 * _MMAP_BYTES  # free memory at the top of a heap that is kept: as glibc sets it with the other
_GIVEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Set the thresholds, for the whole process; False where they were given or the C library has none."""
    if any(name in os.environ for name in _GIVEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))
