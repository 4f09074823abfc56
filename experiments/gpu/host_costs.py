"""What the host pays: replays of graphs, calls, from an event's end until Python knows, small copies, pinned memory."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from experiments.gpu.blocks import Block
from experiments.gpu.card import HostCard, card_of, device_ms, now, spread_us, timed

_BUSY_US = 200.0
_POLL_S = 20e-6


def measure(block: Block) -> None:
    with torch.inference_mode():
        card = card_of(block)
        stream = card.stream()
        many = 40 if block.quick else 2000
        block.keep(replays=_replays(card, stream, many))
        block.keep(calls_us=_calls(card, stream, many))
        block.keep(from_end_to_python_us=_wake_ups(card, stream, many // 10))
        block.keep(copies=_copies(card, stream, many // 4))
        kept: list[torch.Tensor] = []
        block.keep(pinned_mib_us=spread_us(timed(lambda: kept.append(card.pinned(1 << 20)), 5 if block.quick else 50)))


def _replays(card: HostCard, stream: Any, many: int) -> dict[int, Any]:
    """By number of nodes: what the launch costs the host, and the median time of the graph on the device."""
    x = torch.randn(1024, device=card.device)
    found = {}
    for nodes in (1, 10, 100, 300):

        def work(nodes: int = nodes) -> torch.Tensor:
            y = x
            for _ in range(nodes):
                y = y + 1
            return y

        replay, _ = card.capture(work, stream, card.pool())
        with card.on(stream):
            host = spread_us(timed(replay, many // 2, stream.synchronize))
        found[nodes] = {"host_us": host, "device_us": round(1e3 * device_ms(card, stream, replay, 50), 2)}
    return found


def _calls(card: HostCard, stream: Any, many: int) -> dict[str, Any]:
    event, timing = card.event(), card.event(timed=True)

    def enter() -> None:
        with card.on(stream):
            pass

    calls: dict[str, Callable[[], object]] = {
        "enter a stream": enter,
        "record": lambda: event.record(stream),
        "record, timed": lambda: timing.record(stream),
        "wait_event": lambda: stream.wait_event(event),
        "query": lambda: event.query(),
    }
    found = {name: spread_us(timed(call, many)) for name, call in calls.items()}
    card.sync()
    return found


def _wake_ups(card: HostCard, stream: Any, times: int) -> dict[str, Any]:
    """From a launch of some work until Python knows that it has ended, less the work's own time."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    def complete() -> None:
        while (event := jobs.get()) is not None:
            told.put(event.synchronize())

    def poll(event: Any) -> None:
        while not event.query():
            time.sleep(_POLL_S)

    def in_a_thread(event: Any) -> None:
        jobs.put(event)
        told.get()

    threads = [threading.Thread(target=one, daemon=True) for one in (complete, loop.run_forever)]
    for thread in threads:
        thread.start()

    def beyond(blocking: bool, wait: Callable[[Any], object]) -> float:
        start, done = card.event(timed=True), card.event(timed=True, blocking=blocking)
        begun = now()
        with card.on(stream):
            start.record(stream)
            card.busy(_BUSY_US)
            done.record(stream)
        wait(done)
        return now() - begun - float(start.elapsed_time(done)) / 1e3

    ways: dict[str, tuple[bool, Callable[[Any], object]]] = {
        "blocking": (True, lambda event: event.synchronize()),
        "spinning": (False, lambda event: event.synchronize()),
        "polling every 20 us": (False, poll),
        "blocking in another thread": (True, in_a_thread),
    }
    found = {name: spread_us([beyond(*way) for _ in range(times)]) for name, way in ways.items()}
    fired = card.event()
    found["a thread and back"] = spread_us(timed(lambda: in_a_thread(fired), times))
    turn = lambda: asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # noqa: E731
    found["an event loop and back"] = spread_us(timed(turn, times))
    jobs.put(None)
    loop.call_soon_threadsafe(loop.stop)
    for thread in threads:
        thread.join(5)
    loop.close()
    return found


def _copies(card: HostCard, stream: Any, times: int) -> dict[str, Any]:
    """Of a row of ids, and of an image in fp32: the host's part, and the device's."""
    found = {}
    for size in (512, 602_112):
        host, device = card.pinned(size), torch.zeros(size, dtype=torch.uint8, device=card.device)
        card.sync()
        for name, target, source in (("to the device", device, host), ("to the host", host, device)):

            def copy(target: torch.Tensor = target, source: torch.Tensor = source) -> None:
                target.copy_(source, non_blocking=True)

            with card.on(stream):
                spent = spread_us(timed(copy, times, stream.synchronize))
            found[f"{size} bytes {name}"] = {
                "host_us": spent, "device_us": round(1e3 * device_ms(card, stream, copy, min(times, 100)), 2),
            }  # fmt: skip
    return found
