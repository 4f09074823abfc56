"""Invariants of a stream: its events have each piece once and in order, whenever its client reads; what waits for a
slow client is not more than its rows have made."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from app.http.codecs.events import Stream

#: A row makes a piece, or the client reads what has been sent to it.
ACTS = st.lists(st.tuples(st.integers(0, 2), st.text(min_size=1, max_size=5)) | st.just("reads"), max_size=40)


@given(ACTS, st.booleans())
def test_each_piece_is_sent_once_whoever_is_slow(acts: list[Any], ends_whole: bool) -> None:
    asyncio.run(play(acts, ends_whole))


async def play(acts: list[Any], ends_whole: bool) -> None:
    made: dict[int, str] = defaultdict(str)
    got: dict[int, str] = defaultdict(str)
    firsts: list[int] = []
    sending = asyncio.Semaphore(0)  # how often the client reads
    in_events: list[tuple[int, str]] = []
    ended = False

    def event(row: int, pieces: list[str], first: bool) -> bytes:
        assert first == (not got[row])
        firsts.append(row) if first else None
        got[row] += "".join(pieces)
        in_events.append((row, "".join(pieces)))
        return b"."

    async def send(message: Any) -> None:
        nonlocal ended
        assert not ended
        assert message["body"].count(b".") == len(in_events)
        in_events.clear()
        ended = not message["more_body"]
        await sending.acquire()

    def fail(error: Exception) -> None:
        raise AssertionError from error

    stream = Stream(event)
    task = asyncio.create_task(stream.send(send, fail))
    for act in acts:
        if act == "reads":
            sending.release()
        else:
            row, piece = act
            made[row] += piece
            stream.add(row, piece)
        for _ in range(3):
            await asyncio.sleep(0)
        for row, text in made.items():
            assert text.startswith(got[row])
            assert stream.sent[row] == len(got[row])
    if ends_whole:
        for row, text in made.items():
            got[row] += text[stream.rest(row) :]
    stream.end(b"end")
    for _ in range(len(acts) + 3):
        sending.release()
    await task
    assert ended
    assert {row: text for row, text in got.items() if text} == made
    assert sorted(firsts) == sorted(set(firsts))


async def test_a_client_that_does_not_read_costs_one_message_and_what_it_has_not_read() -> None:
    """Memory of a slow reader: a message under way, and the pieces behind it. Nothing is made into events early."""
    events: list[int] = []
    messages: list[Any] = []
    reads = asyncio.Event()

    async def send(message: Any) -> None:
        messages.append(message)
        await reads.wait()

    stream = Stream(lambda row, pieces, first: events.append(len(pieces)) or b".")  # type: ignore[func-returns-value]
    task = asyncio.create_task(stream.send(send, lambda error: None))
    for _ in range(1000):
        stream.add(0, "a")
        await asyncio.sleep(0)
    assert (len(messages), sum(events)) == (1, 1)
    stream.end(b"")
    reads.set()
    await task
    assert (len(messages), sum(events)) == (2, 1000)
