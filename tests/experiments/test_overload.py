"""Goodput in overload with clients that leave, in virtual time."""

from __future__ import annotations

import pytest

from experiments.overload.overload import BATCH, BATCH_NS, WAYS, Overload, S

SECONDS = 20


@pytest.mark.parametrize("load", [2.0, 10.0])
def test_a_queue_as_long_as_callers_wait_holds_the_capacity(load: float) -> None:
    """In order of arrival each row reaches the worker as its caller leaves."""
    peak = SECONDS * S * BATCH / BATCH_NS
    in_order, learnt = (len(Overload(load, way, 2.0).run(SECONDS).good) / peak for way in (WAYS[0], WAYS[2]))
    assert in_order < 0.5
    assert learnt >= 0.8


def test_clients_that_wait_are_served_as_before() -> None:
    before, after = (Overload(2.0, way, 0.0).run(SECONDS) for way in (WAYS[0], WAYS[2]))
    assert (after.good, after.refused) == (before.good, before.refused)
