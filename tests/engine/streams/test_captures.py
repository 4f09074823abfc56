"""A stream that graphs are captured on is nobody else's."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.engine.streams.captures import Streams


def torch_like() -> Callable[[int], int]:
    """Streams by number; after 32 of a priority, the first again."""
    made: dict[int, int] = {}

    def make(priority: int) -> int:
        made[priority] = made.get(priority, 0) + 1
        return priority * 1000 + (made[priority] - 1) % 32

    return make


def test_beyond_what_torch_has_streams_to_work_on_are_shared_and_those_to_capture_on_are_not() -> None:
    streams = Streams(torch_like())
    working = [streams.take(0) for _ in range(2)]
    captures = [streams.take_unused(0) for _ in range(30)]
    assert streams.take_unused(0) is None
    assert [streams.take(0) for _ in range(4)] == working * 2
    assert None not in captures


@given(taken=st.integers(0, 40), acts=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=60))
def test_no_stream_to_capture_on_is_in_use(taken: int, acts: list[tuple[bool, int]]) -> None:
    """Models come and go in any order."""
    streams = Streams(torch_like())
    others = {streams.take(0) for _ in range(taken)}
    captures: list[int] = []
    for loads, which in acts:
        if loads or not captures:
            stream = streams.take_unused(0)
            assert (stream is None) == (len(others) + len(captures) == 32)
            captures += [] if stream is None else [stream]
        else:
            streams.give_back(0, captures.pop(which % len(captures)))
        assert len({*others, *captures}) == len(others) + len(captures)
