"""The baselines change what there is: a method that the scheduler no longer has would change nothing."""

from __future__ import annotations

import pytest

from experiments.common.baselines import Begun, ByArrival, Unlimited


@pytest.mark.parametrize("baseline", [Begun, ByArrival, Unlimited])
def test_a_baseline_changes_methods_that_there_are(baseline: type) -> None:
    changed = {name for name, value in vars(baseline).items() if callable(value)}
    assert changed
    assert [name for name in changed if not hasattr(baseline.__base__, name)] == []
