"""Files that are looked at now and then, and read again when one of them has changed."""

from __future__ import annotations

from pathlib import Path

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles:
    """Files by their paths. Links are followed: Kubernetes replaces a secret by swapping the link to its folder."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._signature()

    def changed(self) -> bool:
        """Whether a file is another than it was at the last look, or the first. Costs a call of the system a file.

        Look first and read then: what is written between the two is seen at the next look.
        """
        now = self._signature()
        before, self._seen = self._seen, now
        return now != before

    def _signature(self) -> _Signature:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    """What a write, a replacement or a swapped link changes; None where the file cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
