"""Graphs that may run at once are captured on different streams; none loses its stream's workspace to another's end."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.engine.streams.captures import CaptureStream, Streams


class Graph:
    pass


def torch_like() -> Callable[[int], int]:
    """Streams by number; after 32 of a priority, the first again."""
    made: dict[int, int] = {}

    def make(priority: int) -> int:
        made[priority] = made.get(priority, 0) + 1
        return priority * 1000 + (made[priority] - 1) % 32

    return make


def test_streams_are_used_again() -> None:
    streams = Streams(torch_like())
    first, other = streams.take(0), streams.take(-1)
    streams.give_back(0, first)
    assert streams.take(-1) not in (first, other)
    assert streams.take(0) == first


def test_graphs_go_with_their_model_before_the_stream_is_anothers() -> None:
    streams = Streams(torch_like())
    capture = streams.capture(0, 0)
    assert capture is not None
    graphs = {1: Graph()}
    gone = weakref.ref(graphs[1])
    streams.release(capture, graphs)
    assert gone() is None
    assert streams.take(0) == capture.stream


def test_no_stream_is_left_for_a_worker_that_has_none() -> None:
    streams = Streams(torch_like())
    taken = [streams.take(0) for _ in range(32)]
    assert streams.capture(0, 0) is None
    streams.give_back(0, taken[7])
    capture = streams.capture(0, 0)
    assert capture is not None
    assert capture.stream == taken[7]
    assert streams.capture(1, 0) is None
    assert streams.capture(0, 0) is capture


def test_streams_that_others_make_do_not_bring_back_those_in_use() -> None:
    make = torch_like()
    streams = Streams(make)
    mine = [streams.take(0) for _ in range(5)]
    for _ in range(27):  # a model's own, say: torch hands out all of its streams in turn
        make(0)
    capture = streams.capture(0, 0)
    assert capture is not None
    assert capture.stream not in mine


@given(
    workers=st.integers(1, 6),
    acts=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=60),
)
def test_the_two_rules(workers: int, acts: list[tuple[bool, int]]) -> None:
    """Models come and go in any order, on a device with a stream to compute and one for results for each worker."""
    streams = Streams(torch_like())
    taken = {streams.take(0) for _ in range(1 + 2 * workers)}
    models: list[list[tuple[CaptureStream, dict[int, Graph]]]] = []
    captured: list[tuple[CaptureStream, weakref.ref[Graph]]] = []  # every graph there ever was, and where
    for loads, which in acts:
        if loads or not models:
            found = [streams.capture(worker, 0) for worker in range(workers)]
            assert None not in found  # the first models have streams of their own, so later ones can share
            model = [(capture, {1: Graph()}) for capture in found if capture is not None]
            captured += [(capture, weakref.ref(graphs[1])) for capture, graphs in model]
            models.append(model)
            del model, found
        else:
            for capture, graphs in models.pop(which % len(models)):
                streams.release(capture, graphs)
                assert not graphs
        used = {capture.stream: capture.worker for model in models for capture, _ in model}
        assert not taken & used.keys()
        for model in models:
            assert all(used[capture.stream] == capture.worker for capture, _ in model), "two workers on one stream"
        for capture, graph in captured:
            assert (graph() is not None) == bool(capture.users), "a graph ended while others used its stream"
