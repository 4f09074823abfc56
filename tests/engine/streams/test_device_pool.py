"""Ebird's rules of slots, one by one; conformance/test_any_order.py holds them all at once, in any order."""

from __future__ import annotations

import pytest

from .bench import Bench


def test_slots_whose_callers_have_left_are_handed_out_when_their_copies_are_over():
    """Also where no unit ever runs; and a model is drained before that."""
    bench = Bench()
    pool = bench.pool
    pool.give_back([*bench.arrive(*map(float, range(5))), *bench.arrive(1.0, 2.0, 3.0)])
    assert (pool.used, pool.free) == (0, 0)
    with pytest.raises(MemoryError):
        pool.take(1)
    bench.launch()
    with pytest.raises(MemoryError, match="1 slots wanted"):
        pool.take(1)
    bench.run(bench.arrivals)
    assert len(pool.take(8)) == 8
    assert (pool.used, pool.free) == (8, 0)


def test_slots_come_back_unasked_when_a_unit_that_waited_for_their_copies_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking costs a call into the driver for each row, on the event loop."""
    bench = Bench()
    first, second = bench.arrive(1.0, 2.0), bench.arrive(3.0)
    bench.ran([*first, *second])
    later = bench.arrive(4.0)
    bench.launch()
    asked: list[object] = []
    monkeypatch.setattr(bench.runtime, "fired", lambda event: bool(asked.append(event)))
    bench.pool.give_back([*first, *second])
    assert not asked
    assert bench.pool.free == 7
    bench.pool.give_back(later)
    assert len(asked) == 1
    assert bench.pool.free == 7, "its copy is not over"


def test_a_unit_whose_rows_have_been_copied_does_not_wait_for_a_launcher_that_copies_others() -> None:
    bench = Bench()
    slots = bench.arrive(1.0)
    bench.launch()
    others = bench.arrive(2.0)
    lock = bench.device.in_stream.lock
    lock.acquire()
    try:
        bench.pool.copy_arrived(slots)  # or it hangs
    finally:
        lock.release()
    bench.pool.copy_arrived(others)
    assert bench.pool.in_event(others)[0] == 2
