"""A pair is read back as it was written, and of programs beside one another only what was measured is known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.scheduler.estimates.pairs import Pair, Paired, PairTime, parse_pair, slowdowns

GOOD = {"rows": 1, "beside_rows": 8, "alone_ms": 2.0, "beside_ms": 2.1, "slower": 0.05}


def test_a_pair_is_read_as_it_was_written():
    pair = Pair("m", "abc", (PairTime(1, 8, 2.0, 2.1, 0.05), PairTime(4, 8, 3.0, 2.9, -0.1)), {"made": "then"})
    assert parse_pair(json.loads(json.dumps(pair.to_dict()))) == pair


def test_the_worst_of_its_sizes_and_nothing_below_zero():
    slower, faster = PairTime(1, 8, 100, 105, 0.05), PairTime(4, 8, 100, 90, -0.1)
    pair = Pair("m", "abc", (faster, slower))
    assert (pair.slower, pair.max_batch, pair.beside_max_batch) == (0.05, 4, 8)
    assert Pair("m", "abc", (faster,)).slower == 0


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"model": "m", "sizes": [GOOD]},
        *(
            {"model": "m", "architecture": "a", "sizes": sizes}
            for sizes in (None, [], [1], [GOOD, {**GOOD, "rows": 0}], [{**GOOD, "slower": None}],
                          [{**GOOD, "slower": -2}], [{**GOOD, "unknown": 1}])
        ),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused(given: Any):
    with pytest.raises(ValueError, match="beside: expected pairs"):
        parse_pair(given)


def times_of(*slower: float) -> tuple[PairTime, ...]:
    """One row and eight, beside one row and then beside sixteen."""
    sizes = [(1, 1), (8, 1), (1, 16), (8, 16)]
    return tuple(PairTime(*one, 100, 100, fraction) for one, fraction in zip(sizes, slower, strict=False))


FULL = times_of(0.01, 0.02, 0.03, 0.04)
CALLS, BULK = Paired("calls", "a1", 8, (Pair("bulk", "b1", FULL),)), Paired("bulk", "b1", 16)
ITSELF = Paired("calls", "a1", 8, (Pair("calls", "a1", FULL),))


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        pytest.param({3: CALLS, 7: BULK}, {(3, 7): 0.04}, id="one-way-round"),
        pytest.param({1: ITSELF, 2: ITSELF._replace(architecture="a2")}, {(1, 1): 0.04, (2, 1): 0.04}, id="itself"),
        pytest.param(
            {0: CALLS._replace(max_batch=2), 1: BULK._replace(max_batch=1)}, {(0, 1): 0.04}, id="smaller-batches"
        ),
        pytest.param({0: CALLS._replace(max_batch=9), 1: BULK}, {}, id="larger"),
        pytest.param({0: CALLS, 1: BULK._replace(max_batch=17)}, {}, id="larger-beside"),
        pytest.param({0: CALLS, 1: BULK._replace(architecture="b2")}, {}, id="another-architecture"),
        pytest.param({0: CALLS, 1: BULK._replace(model="other")}, {}, id="another-model"),
        pytest.param({0: CALLS._replace(pairs=()), 1: BULK}, {}, id="no-pairs"),
    ],
)
def test_only_what_was_measured_of_these_very_architectures_is_known(programs, expected) -> None:
    assert slowdowns(programs) == expected
