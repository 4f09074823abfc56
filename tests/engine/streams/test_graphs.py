"""Graphs: which shapes are captured, on streams that are nobody else's, and the allocators' settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.contract import UNBOUNDED
from app.engine.streams.cuda import CudaRuntime, device_index, set_allocators, torch_release
from app.engine.streams.executor import graph_lengths, graph_sizes, variable_axis
from app.engine.streams.threads import StreamAllocator
from app.errors import ConfigError

from ..rig import X, make_model, raising, tensor

# There are few graphs, they cover every batch that a worker runs, and padding stays within bounds.


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
    assert graph_sizes(largest, fixed=True) == sizes


@given(
    largest=st.integers(1, 1024),
    bound=st.integers(1, 10_000),
    buckets=st.lists(st.integers(1, 10_000), max_size=30, unique=True).map(sorted).map(tuple),
)
def test_few_graphs_cover_every_batch(largest: int, bound: int, buckets: tuple[int, ...]) -> None:
    sizes = graph_sizes(largest, fixed=False)
    lengths = graph_lengths(bound, buckets, len(sizes))
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
    assert axis(X) == ("", 0)
    assert axis(a, b, tensor("m", "BOOL", ("n", 40), mask_of="a")) == ("n", 40)
    assert axis(tensor("a", "FP32", ("h", 40), ("w", 30))) == ("", 0)
    assert axis(tensor("a", "FP32", ("n", UNBOUNDED))) == ("", 0)
    assert axis(a, row_check="warn") == ("", 0)
    assert axis(a, row_check="off") == ("", 0)


# A stream that graphs are captured on is nobody else's.


def torch_like() -> Callable[[int], int]:
    """Streams by number; after 32 of a priority, the first again."""
    made: dict[int, int] = {}

    def make(priority: int) -> int:
        made[priority] = made.get(priority, 0) + 1
        return priority * 1000 + (made[priority] - 1) % 32

    return make


@given(taken=st.integers(0, 40), acts=st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=60))
def test_no_stream_to_capture_on_is_in_use(taken: int, acts: list[tuple[bool, int]]) -> None:
    """Models come and go in any order. Beyond what torch has, streams to work on are shared, one after another."""
    streams = StreamAllocator(torch_like())
    others = [streams.take(0) for _ in range(taken)]
    assert others[32:] == others[: max(0, taken - 32)]
    captures: list[int] = []
    for loads, which in acts:
        if loads or not captures:
            stream = streams.take_unused(0)
            assert (stream is None) == (len(set(others)) + len(captures) == 32)
            captures += [] if stream is None else [stream]
        else:
            streams.give_back(0, captures.pop(which % len(captures)))
        assert len({*others, *captures}) == len(set(others)) + len(captures)
    assert not others or streams.take(0) not in captures


# Which GPU.


@pytest.mark.parametrize("asked", ["auto", "cuda", "cuda:0"])
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the server starts. Asked how many there are, and for its name, the driver answers all the same."""
    told = "CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with TORCH_USE_CUDA_DSA"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "ones", raising(torch.AcceleratorError(told)))
    with pytest.raises(ConfigError, match=r"^device: GPU 0: CUDA error: all .* unavailable; see nvidia-smi"):
        device_index(asked)


# The settings of torch's allocators, beside those of whoever starts the server.


CATCHES = "pinned_free_catch_all:True"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("", "pinned_max_cached_size_mb:64"),
        ("expandable_segments:True,", "expandable_segments:True,pinned_max_cached_size_mb:64"),
        ("pinned_max_cached_size_mb:8", "pinned_max_cached_size_mb:8"),
    ],
)
def test_settings_are_added_to_those_that_are_there(theirs: str, expected: str, known: bool, monkeypatch) -> None:
    """Not every torch knows what it is to do with pinned memory of a device that has failed."""
    now = [theirs]

    def take(settings: str) -> None:
        if "catch_all" in settings and not known:
            raise ValueError("Unrecognized key")
        now.append(settings)

    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: now[-1], raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", take)
    for _ in range(2):  # a runtime for each device
        set_allocators()
    assert now[-1] == (f"{expected},{CATCHES}" if known else expected)


# Old releases of torch.


@pytest.mark.parametrize(
    ("version", "release"),
    [("2.11.0+cu130", (2, 11)), ("2.11.0a0+git1", (2, 11)), ("2.13.0", (2, 13)), ("3.0", (3, 0))],
)
def test_releases_are_compared_by_their_numbers(version: str, release: tuple[int, int], monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_release() == release


@pytest.mark.parametrize(("version", "ends"), [("2.11.0", [False, True]), ("2.13.0", [False])])
def test_after_a_capture_that_failed_an_old_torch_makes_another(version: str, ends: list[bool], monkeypatch) -> None:
    """Its generator of random numbers believes that the first goes on, until one has ended well."""
    ended: list[bool] = []

    class Graph:
        def capture_begin(self, pool: object, capture_error_mode: str) -> None: ...

        def capture_end(self) -> None:
            ended.append(True)

        def replay(self) -> None: ...

    class Invalid(Graph):
        def capture_end(self) -> None:
            ended.append(False)
            raise RuntimeError("invalidated")

    made = iter([Invalid, Graph])
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: next(made)())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *_: None, raising=False)
    runtime = object.__new__(CudaRuntime)
    runtime.device, runtime._failed = torch.device("cpu"), []
    kept: list[object] = []
    with pytest.raises(RuntimeError, match="invalidated"):
        runtime.capture(None, object(), lambda: [], kept)
    assert ended == ends
    assert len(kept) == len(ends), "freed before the other graphs of its stream"
