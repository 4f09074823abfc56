"""The cores and the memory that this process may use, by the machine and by its containers' limits."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def helper_threads() -> int:
    """How many helper threads decode and compress. One of them is reserved for real-time requests."""
    return max(2, cpu_cores())


def memory_limit(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Bytes that this process may use: the smallest memory.max of its cgroups; None: no limit."""
    return min((int(limit) for limit in _limits("memory.max", root, own)), default=None)


def resident_bytes(own: Path = Path("/proc/self/statm")) -> int:
    """Bytes of memory that this process uses now; 0 if unknown."""
    try:
        return int(own.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def cpu_cores(root: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Cores that this process may use: by its CPU affinity, and by the CPU quotas of its cgroups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [limit.split() for limit in _limits("cpu.max", root, own)]
    return max(1, min([allowed, *(int(quota) // int(period) for quota, period in quotas)]))


def _limits(name: str, root: Path, own: Path) -> list[str]:
    """The limits in the files `name` of the process's cgroup (version 2) and of its parents."""
    path = ""  # the root cgroup, which may be all that a container sees
    with suppress(OSError, StopIteration):
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    group = root / path.strip("/")
    found = []
    for folder in (one for one in (group, *group.parents) if one.is_relative_to(root)):
        with suppress(OSError):
            found.append((folder / name).read_text().strip())
    return [limit for limit in found if not limit.startswith("max")]
