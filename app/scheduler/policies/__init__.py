"""When to form a batch: one file per policy behind one Protocol. Each policy describes itself; names stand once.

`POLICIES` is what there is, in the order in which it is told; a policy's name is an attribute of its class.
"""

from __future__ import annotations

from app.scheduler.optimal.tables import weight_of
from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.base import Around, BasePolicy, Course, Cut, Facts, Hold, KeyView, Policy
from app.scheduler.policies.dva_input import DvaInput
from app.scheduler.policies.dva_load import DvaLoad
from app.scheduler.policies.dva_operator import DvaOperator
from app.scheduler.policies.ebird import Ebird
from app.scheduler.policies.late import Late
from app.scheduler.policies.no_wait import NoWait
from app.scheduler.policies.preferred import Preferred
from app.scheduler.policies.static import Static
from app.scheduler.policies.window import Window

__all__ = [
    "POLICIES",
    "Around",
    "BasePolicy",
    "Course",
    "Cut",
    "Facts",
    "Hold",
    "KeyView",
    "Policy",
    "default_workers",
    "make",
]

_ALL: tuple[type[BasePolicy], ...] = (
    Adaptive, NoWait, Window, Static, Preferred, Ebird, Late, DvaInput, DvaOperator, DvaLoad,
)  # fmt: skip
POLICIES = {policy.name: policy for policy in _ALL}


def policy_class(name: str) -> type[BasePolicy]:
    """Raises ValueError that names the policies there are."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {name!r}") from None


def make(name: str) -> Policy:
    """A fresh policy. Raises ValueError that names the policies there are."""
    return policy_class(name)()


def check_names(policy: str, objective: str | float) -> None:
    """Raise ValueError for a policy or an objective that there is not."""
    policy_class(policy)
    weight_of(objective)


def default_workers(policy: str, max_batch: int) -> tuple[int, ...]:
    """The capacities of the workers where none are given. Raises ValueError for an unknown policy."""
    return policy_class(policy).workers(max_batch)
