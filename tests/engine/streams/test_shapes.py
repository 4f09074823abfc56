"""There are few graphs, they cover every batch that a worker runs, and padding stays within bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract import UNBOUNDED
from app.engine.streams.graphs import lengths_of, sizes_of, variable_axis

from ..rig import X, make_model, tensor


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (16, [*range(1, 17)]),
        (40, [*range(1, 17), 32, 40]),
        (64, [*range(1, 17), 32, 64]),
    ],
)
def test_sizes_of_fixed_rows(largest: int, sizes: list[int]) -> None:
    assert sizes_of(largest, fixed=True) == sizes


@given(
    largest=st.integers(1, 1024),
    bound=st.integers(1, 10_000),
    buckets=st.lists(st.integers(1, 10_000), max_size=30, unique=True).map(sorted).map(tuple),
)
def test_few_graphs_cover_every_batch(largest: int, bound: int, buckets: tuple[int, ...]) -> None:
    sizes = sizes_of(largest, fixed=False)
    lengths = lengths_of(bound, buckets, len(sizes))
    assert len(sizes) * len(lengths) <= 64
    assert (sizes, lengths) == (sorted(set(sizes)), sorted(set(lengths)))
    assert (sizes[0], sizes[-1]) == (1, largest)
    assert all(larger <= 2 * size for size, larger in itertools.pairwise(sizes))
    assert set(lengths) <= {*buckets, bound} if buckets else lengths[-1] == bound
    if not buckets:
        assert all(longer <= 2 * length for length, longer in itertools.pairwise(lengths))


def test_one_variable_axis_with_a_bound_is_padded_if_padding_is_checked() -> None:
    def axis(*inputs, row_check="refuse"):
        return variable_axis(make_model(None, inputs, row_check=row_check))

    a, b = tensor("a", "FP32", ("n", 40), 3), tensor("b", "FP32", ("n", 40))
    assert axis(X) is None
    assert axis(a, b, tensor("m", "BOOL", ("n", 40), mask_of="a")) == ("n", 40)
    assert axis(tensor("a", "FP32", ("h", 40), ("w", 30))) is None
    assert axis(tensor("a", "FP32", ("n", UNBOUNDED))) is None
    assert axis(a, row_check="warn") is None
    assert axis(a, row_check="off") is None
