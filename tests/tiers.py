"""How much of a test runs: all of it in `make test`, a few examples of it in `make test-core`.

Of a parametrised test the core tier has one in six cases (tests/conftest.py). Else a test says so: it is marked `full`,
it repeats something `few(n)` times, it has `repeatable(n)` examples of Hypothesis, or it goes through `some(cases)`. In
the whole suite that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from hypothesis import settings

T = TypeVar("T")

#: Left out of the core tier: slow, or about more than the pure core.
full = pytest.mark.full

#: Whether pytest was called with --core. Set once, by tests/conftest.py, before any test is imported.
core = False


def few(times: int) -> int:
    """How often to do it: `times`; in the core tier a twentieth of that, and not less than three times."""
    return max(3, times // 20) if core else times


def some(cases: Iterable[T], every: int = 4) -> list[T]:
    """All of the cases; in the core tier one in `every` of them, beginning with the first."""
    return list(cases)[:: every if core else 1]


def repeatable(times: int) -> settings:
    """Hypothesis with `times` examples, in the core tier the simplest one and a sixtieth of the others.

    They are the same on every run: one that fails on another branch says nothing.
    """
    from hypothesis import HealthCheck, Phase, settings

    return settings(
        derandomize=True,
        max_examples=1 + max(1, times // 60) if core else times,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
