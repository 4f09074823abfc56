"""Invariant: each call gets the rows of its own texts or its own error, whatever calls its front read with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from resumed import running

from app.contract import Answers, Array, Front, Klass, Model, ModelInfo, Reader, TextCut, Translated
from app.errors import BadText
from app.http.threads import HelperThreads

from .catalog import spec
from .echo import A_TEXT, FRIENDLY, Caller, Echo

WAIT_S = 10
LONG = 600  # bytes of a body that is read on a thread


class Panic(BaseException):
    """As pyo3's, which tokenizers raises when its Rust code fails."""


class Letters(Reader):
    """Makes a row of each text: how many bytes it has, four times. It reads when `go_on` is set.

    `batches`: the texts of each call that it read or tried to, by hand-over, and `threads` where that was. A text `bad`
    is refused, `worse` and `panic` break it.
    """

    sent = (spec("text", "BYTES"),)

    def __init__(self, reads_texts: bool = True) -> None:
        self.reads_texts = reads_texts
        self.batches: list[list[list[bytes]]] = []
        self.threads: list[threading.Thread] = []
        self.began = threading.Semaphore(0)
        self.go_on = threading.Event()

    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        self.batches.append([texts.tolist() for (texts,) in calls])
        self.threads.append(threading.current_thread())
        self.began.release()
        assert self.go_on.wait(WAIT_S)
        return [self._row(texts.tolist()) for (texts,) in calls]

    def _row(self, texts: list[bytes]) -> Translated:
        for place, text in enumerate(texts):
            if text == b"bad":
                raise BadText("text", place if len(texts) > 1 else None, "expected a good one")
            if text == b"worse":
                raise ArithmeticError("no letters")
            if text == b"panic":
                raise Panic
        return Translated([np.array([[len(text)] * 4 for text in texts], np.float32)])

    async def begun(self, count: int = 1) -> None:
        """Return when that many hand-overs more have begun."""
        for _ in range(count):
            assert await asyncio.to_thread(self.began.acquire, timeout=WAIT_S)


@pytest.fixture(autouse=True)
async def enough_threads() -> None:
    """Those of HelperThreads, and one on which a test waits."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))


@pytest.fixture
def letters() -> Iterator[Letters]:
    front = Letters()
    yield front
    front.go_on.set()


def sent(*texts: bytes) -> list[Array]:
    return [np.array(texts, object)]


def reading(readings: HelperThreads, front: Letters, *texts: bytes, size: int = LONG) -> asyncio.Future[Translated]:
    return running(readings.read(front, Klass.REALTIME, sent(*texts), size))


def rows_of(read: Translated) -> list[int]:
    return [int(row[0]) for row in read.arrays[0]]


@pytest.mark.parametrize(
    ("sizes", "reads_texts", "on_loop"),
    [
        ((256, 256), True, True),
        ((256, 257), True, False),
        ((1,), False, False),
    ],
)
async def test_only_short_texts_are_read_on_the_event_loop(
    letters: Letters, sizes: tuple[int, ...], reads_texts: bool, on_loop: bool
) -> None:
    letters.reads_texts = reads_texts
    letters.go_on.set()
    readings = HelperThreads(2)
    tasks = [reading(readings, letters, b"a" * size, size=size) for size in sizes]
    assert [rows_of(read) for read in await asyncio.gather(*tasks)] == [[size] for size in sizes]
    assert [thread is threading.current_thread() for thread in letters.threads] == [on_loop]


async def test_what_comes_while_all_threads_are_busy_is_read_together(letters: Letters) -> None:
    readings = HelperThreads(1)
    tasks = [reading(readings, letters, b"a")]
    await letters.begun()
    for text in (b"bb", b"ccc", b"dddd"):
        tasks.append(reading(readings, letters, text))
        await asyncio.sleep(0)
    letters.go_on.set()
    assert [rows_of(read) for read in await asyncio.gather(*tasks)] == [[1], [2], [3], [4]]
    assert [len(batch) for batch in letters.batches] == [1, 3]


async def test_more_than_one_thread_should_read_is_shared_among_them(letters: Letters) -> None:
    """8 KiB a hand-over; what does not fit goes to the next thread. Files are read one by one."""
    for reads_texts, found in ((True, [2, 2, 1]), (False, [1] * 5)):
        front = Letters(reads_texts)
        readings = HelperThreads(2)
        tasks = [reading(readings, front, b"a" * count, size=4 << 10) for count in range(1, 6)]
        await front.begun(2)
        front.go_on.set()
        assert [rows_of(read) for read in await asyncio.gather(*tasks)] == [[count] for count in range(1, 6)]
        assert [len(batch) for batch in front.batches] == found


@pytest.mark.parametrize(("text", "kind"), [(b"bad", BadText), (b"worse", ArithmeticError), (b"panic", Panic)])
async def test_a_bad_text_fails_its_own_call(letters: Letters, text: bytes, kind: type[BaseException]) -> None:
    readings, calls = HelperThreads(2), [[b"a", b"dd"], [b"bb", text], [b"ccc"]]
    letters.go_on.set()
    tasks = [reading(readings, letters, *texts) for texts in calls]
    first, failed, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert [rows_of(read) for read in (first, last) if isinstance(read, Translated)] == [[1, 2], [3]]
    assert letters.batches == [calls, *([texts] for texts in calls)]  # together, then each alone
    assert isinstance(failed, kind)
    assert str(failed) in ("text of row 1: expected a good one", "no letters", "")


# through HTTP


@pytest.fixture
def model(letters: Letters) -> Echo:
    """A model behind a front."""
    info = ModelInfo("echo", "1", "pytorch", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))
    front = Front(letters, Answers(info.outputs))
    return Echo(front.client_info(info), Model(info, lambda x: x, front=front))


async def test_each_request_has_its_own_answer(call: Caller, letters: Letters) -> None:
    letters.go_on.set()
    texts = [b"a", b"bb", b"bad", b"cccc", b"worse"]
    replies = await asyncio.gather(*(call(FRIENDLY, text, A_TEXT) for text in texts))
    assert [reply.status for reply in replies] == [200, 200, 400, 200, 500]
    assert [reply.json()["y"][0] for reply in replies if reply.status == 200] == [1, 2, 4]
    assert replies[2].error == "text: expected a good one"
