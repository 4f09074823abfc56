"""The batching policies by name, and what is asked of one by its name.

`POLICIES` and `OBJECTIVES` are in the order of the help texts.
"""

from __future__ import annotations

from app.scheduler.policies.adaptive import Adaptive
from app.scheduler.policies.base import Cut, Hold, Policy
from app.scheduler.policies.deadline import Deadline
from app.scheduler.policies.dva import DvaInput, DvaLoad, DvaOperator
from app.scheduler.policies.ebird import Ebird
from app.scheduler.policies.fixed import NoWait, Preferred, Static, Window
from app.scheduler.policies.late import Late
from app.scheduler.policies.offer import Neighbours, Offer

__all__ = ["OBJECTIVES", "POLICIES", "Cut", "Hold", "Neighbours", "Offer", "Policy"]

_ALL: tuple[type[Policy], ...] = (
    Adaptive, NoWait, Window, Static, Preferred, Ebird, Late, DvaInput, DvaOperator, DvaLoad, Deadline,
)  # fmt: skip
POLICIES = {policy.name: policy for policy in _ALL}
OBJECTIVES = ("latency", Deadline.name)  # of adaptive


def policy_class(name: str) -> type[Policy]:
    """The policy of this name. Raises ValueError that lists the names there are."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}, got {name!r}") from None


def policy_for(policy: str, objective: str) -> str:
    """The name of the policy that serves a program: `deadline` in place of `adaptive` if that is the objective."""
    return Deadline.name if (policy, objective) == (Adaptive.name, Deadline.name) else policy
