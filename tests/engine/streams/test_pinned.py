"""Invariant: memory is registered while anything refers to it, in whole pages, and no block is used twice at once."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.streams.pinned import PinnedMemory

MIB = 1 << 20


class Driver:
    """Address ranges that are registered. `refuses`: it registers no more."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.small: list[tuple[int, ...]] = []
        self.refuses = False
        self.memory = PinnedMemory(self.register, self.unregister, self.other)

    def register(self, address: int, nbytes: int) -> None:
        if self.refuses:
            raise RuntimeError("out of memory")
        assert not self.memory._lock.locked(), "a launcher would wait for the driver"
        assert address % mmap.PAGESIZE == 0
        assert nbytes % mmap.PAGESIZE == 0
        assert all(address + nbytes <= other or other + size <= address for other, size in self.ranges.items())
        self.ranges[address] = nbytes

    def unregister(self, address: int) -> None:
        assert not self.memory._lock.locked()
        del self.ranges[address]

    def other(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.small.append(shape)
        return torch.empty(shape, dtype=dtype)

    def holds(self, tensor: torch.Tensor) -> bool:
        at = tensor.data_ptr()
        return any(first <= at and at + tensor.nbytes <= first + size for first, size in self.ranges.items())


def test_large_blocks_are_rounded_to_pages_and_not_to_powers_of_two() -> None:
    driver = Driver()
    tensor = driver.memory.allocate((513, MIB // 4), torch.float32)
    assert (tensor.shape, tensor.dtype) == ((513, MIB // 4), torch.float32)
    assert driver.holds(tensor)
    assert sum(driver.ranges.values()) == 513 * MIB


def test_small_blocks_are_left_to_the_other_allocator() -> None:
    driver = Driver()
    driver.memory.allocate((0,), torch.uint8)
    driver.memory.allocate((MIB - 1,), torch.uint8)
    assert driver.ranges == {}
    assert driver.small == [(0,), (MIB - 1,)]


def test_a_block_is_used_again_when_nothing_refers_to_it_any_more() -> None:
    driver = Driver()
    tensor = driver.memory.allocate((2 * MIB,), torch.uint8)
    address = tensor.data_ptr()
    views = [tensor.numpy()[5:], tensor.view(torch.int64)[3:], memoryview(tensor.numpy())]
    del tensor
    while views:
        other = driver.memory.allocate((2 * MIB,), torch.uint8)
        assert other.data_ptr() != address
        views.pop()
        gc.collect()
        del other
    again = [driver.memory.allocate((2 * MIB - 10,), torch.uint8) for _ in range(2)]
    assert address in {tensor.data_ptr() for tensor in again}
    assert len(driver.ranges) == 2


def test_blocks_that_do_not_fit_are_given_back_before_another_is_pinned() -> None:
    driver = Driver()
    for size in (2, 4, 8):
        driver.memory.allocate((size * MIB,), torch.uint8)
        assert sum(driver.ranges.values()) == size * MIB


def test_where_pages_cannot_be_registered_the_other_allocator_serves(caplog) -> None:
    driver = Driver()
    driver.refuses = True
    for _ in range(2):
        assert driver.memory.allocate((2 * MIB,), torch.uint8).shape == (2 * MIB,)
    assert driver.small == [(2 * MIB,)] * 2
    assert caplog.text.count("pages could not be registered: out of memory") == 1


def test_a_block_that_cannot_be_given_back_is_not_unmapped(caplog) -> None:
    driver = Driver()
    driver.memory.allocate((2 * MIB,), torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.memory, "_unregister", lambda address: (_ for _ in ()).throw(RuntimeError("in use")))
        driver.memory.allocate((8 * MIB,), torch.uint8)
    assert "2 MiB could not be given back: in use" in caplog.text


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=30))
@settings(max_examples=25, deadline=None)
def test_blocks_in_use_are_registered_and_apart(acts: list[tuple[int, bool]]) -> None:
    driver = Driver()
    held: list[tuple[torch.Tensor, int]] = []
    for mark, (size, drops) in enumerate(acts):
        if drops and held:
            held.pop(size % len(held))
            continue
        tensor = driver.memory.allocate((size * MIB,), torch.uint8)
        tensor.fill_(mark)
        held.append((tensor, mark))
        assert all(driver.holds(one) for one, _ in held)
    assert all(bool((one == number).all()) for one, number in held)
    in_use = sum(one.nbytes for one, _ in held)
    assert sum(driver.ranges.values()) <= in_use + sum(size for size, _ in acts) * MIB
    assert np.all([one.data_ptr() % mmap.PAGESIZE == 0 for one, _ in held])
