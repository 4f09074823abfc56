"""When to form a batch, one file per policy behind one Protocol. `make(name)` finds a policy by its name."""

from __future__ import annotations

from collections.abc import Callable

from .base import Cut, Hold, KeyView, Policy
from .no_wait import NoWait
from .static import Static
from .window import Window

__all__ = ["POLICIES", "Cut", "Hold", "KeyView", "Policy", "make"]

POLICIES: dict[str, Callable[[], Policy]] = {"no_wait": NoWait, "window": Window, "static": Static}


def make(name: str) -> Policy:
    """A fresh policy. Raises ValueError that names the policies there are."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {name!r}") from None
