"""Detects that files have changed, so that they are read again."""

from __future__ import annotations

from pathlib import Path


class WatchedFiles:
    """Follows symbolic links: Kubernetes replaces a secret by swapping the link to its folder."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = list(map(_signature, paths))

    def changed(self) -> bool:
        """Whether a file has changed since the last call, or since the start. Costs one system call per file.

        Call this first and read the file afterwards: the next call then notices what is written in between.
        """
        now = list(map(_signature, self._paths))
        before, self._seen = self._seen, now
        return now != before


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    """Numbers that a write, a replacement or a swapped link changes; None if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
