"""Invariant: a slot has one owner at a time, a write stays in its slot, and neighbours in arrival lie side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract import DATATYPES
from app.engine.pool import Pool

from .rig import X, tensor

NUMERIC = [name for name in DATATYPES if name != "BYTES"]
WORDS = tensor("words", "BYTES", 2)


def test_slots_come_in_ring_order():
    pool = Pool([X], 4)
    assert [list(pool.take(1)) for _ in range(3)] == [[0], [1], [2]]
    pool.give_back([0])
    assert list(pool.take(1)) == [3]  # not 0, though it is free
    assert list(pool.take(1)) == [0]


def test_the_order_begins_anew_when_all_slots_are_free():
    """One call at a time uses the memory of one slot, not in the end that of all."""
    pool = Pool([X], 4)
    for _ in range(3):
        slots = pool.take(2)
        assert list(slots) == [0, 1]
        pool.give_back(slots)


@given(
    end=st.sampled_from([12, 9, 1]),
    script=st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 1000)), max_size=60),
)
def test_any_script_agrees_with_a_set(end, script):
    """Rows of one call are neighbours where there is room. Slots that are set apart are never handed out."""
    pool, free = Pool([X], 12), set(range(end))
    assert pool.set_apart(12 - end) == range(end, 12)
    held: list[list[int]] = []
    for takes, n, pick in script:
        if takes:
            if n > len(free):
                with pytest.raises(MemoryError):
                    pool.take(n)
                continue
            slots = list(pool.take(n))
            assert len(set(slots)) == n
            assert set(slots) <= free, "handed out twice, or set apart"
            if any(set(range(slot, slot + n)) <= free for slot in free):
                assert slots == list(range(slots[0], slots[0] + n))
            free -= set(slots)
            held.append(slots)
        elif held:
            slots = held.pop(pick % len(held))
            keep = pick % (len(slots) + 1)  # in any order, and in parts
            back = slots[keep:][::-1]
            pool.give_back(back)
            free |= set(back)
            if keep:
                held.append(slots[:keep])
        assert (pool.free, pool.used) == (len(free), end - len(free))


# writing


@pytest.mark.parametrize("slots", [range(1, 3), [3, 0]], ids=["neighbours", "scattered"])
@pytest.mark.parametrize("datatype", NUMERIC)
def test_a_row_is_in_its_slot_only_written_as_an_array_or_as_its_bytes(datatype: str, slots):
    spec = tensor("t", datatype, 2, 2)
    values = np.arange(8).reshape(2, 2, 2).astype(spec.dtype)
    for written in (values, memoryview(values.tobytes())):
        pool = Pool([spec], 4)
        pool.write(range(4), 0, np.zeros((4, 2, 2), spec.dtype))
        pool.write(slots, 0, written)
        assert np.array_equal(pool.views[0][list(slots)], values)
        assert not pool.views[0][[slot for slot in range(4) if slot not in slots]].any()


def test_bytes_of_a_variable_array_lie_within_the_rows_length():
    spec = tensor("ids", "INT64", ("tokens", 4), 2)
    pool = Pool([spec], 3)
    pool.write(range(3), 0, np.full((3, 4, 2), -1))
    values = np.arange(12).reshape(2, 3, 2)
    pool.write(range(1, 3), 0, memoryview(values.tobytes()), {"tokens": 3})
    assert np.array_equal(pool.views[0][1:3, :3], values)
    assert (pool.views[0][1:3, 3:] == -1).all()
    assert (pool.views[0][0] == -1).all()


@pytest.mark.parametrize(
    "wrong", [*(np.zeros(shape) for shape in [(2, 3), (3, 2), (2, 2, 2)]), *(memoryview(bytes(n)) for n in (8, 24))]
)
def test_a_wrong_shape_or_number_of_bytes_is_an_error(wrong):
    """Fewer bytes would leave an earlier caller's values in the slot, more would end in a neighbour's."""
    pool = Pool([X], 4)
    before = pool.views[0].copy()
    with pytest.raises(ValueError):  # noqa: PT011
        pool.write(range(1, 3), 0, wrong)
    assert np.array_equal(pool.views[0], before, equal_nan=True)


def test_text_is_kept_beside_the_slots_and_forgotten_with_them():
    pool = Pool([X, WORDS], 3)
    slots = pool.take(2)
    pool.write(slots, 1, np.array([[b"a", b"b"], [b"c", b"d"]], object))
    assert [list(values) for values in pool.views[1][:2]] == [[b"a", b"b"], [b"c", b"d"]]
    pool.give_back(slots)
    assert pool.views[1].tolist() == [None, None, None]
