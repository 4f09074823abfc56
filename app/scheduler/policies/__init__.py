"""When to form a batch, one file per policy behind one Protocol. `make(name)` finds a policy by its name."""

from __future__ import annotations

from collections.abc import Callable

from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.base import Cut, Facts, Hold, KeyView, Policy
from app.scheduler.policies.ebird import Ebird
from app.scheduler.policies.ebird import workers_for as ebird_workers
from app.scheduler.policies.no_wait import NoWait
from app.scheduler.policies.preferred import Preferred
from app.scheduler.policies.static import Static
from app.scheduler.policies.window import Window

__all__ = ["POLICIES", "Cut", "Facts", "Hold", "KeyView", "Policy", "default_workers", "make"]

POLICIES: dict[str, Callable[[], Policy]] = {
    "adaptive": Adaptive,
    "no_wait": NoWait,
    "window": Window,
    "static": Static,
    "preferred": Preferred,
    "ebird": Ebird,
}


def make(name: str) -> Policy:
    """A fresh policy. Raises ValueError that names the policies there are."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {name!r}") from None


def default_workers(policy: str, max_batch: int) -> tuple[int, ...]:
    """The capacities of the workers where none are given: for `ebird` the paper's, else one of the largest batch."""
    return ebird_workers(max_batch) if policy == "ebird" else (max_batch,)
