"""Finds packages whose files have changed since this process imported them: a load does not read them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress

from app.errors import presentable

#: By file of an imported module: its modification time and size when a load first saw it.
_seen: dict[str, tuple[int, int]] = {}


def edited_packages(packages: Collection[str]) -> str:
    """A sentence on those of `packages` that were edited since; "" if there are none. Looks at all files, once a load,
    because a package may be imported long before the model that uses it.
    """
    found: dict[str, str] = {}
    for name, module in sys.modules.copy().items():  # at once: other threads import
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        with suppress(OSError, ValueError):
            status = os.stat(file)
            now = status.st_mtime_ns, status.st_size
            package = name.partition(".")[0]
            if _seen.setdefault(file, now) != now and package in packages:
                found.setdefault(package, file)
    if not found:
        return ""
    which = ", ".join(f"{package} ({file})" for package, file in sorted(found.items()))
    return presentable(
        f"changed since the server imported it, and not read again: {which}; restart the server to use it"
    )
