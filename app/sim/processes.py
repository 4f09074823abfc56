"""Runs parts of a simulation in several processes and reports their progress."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import cast

from .report import Tally

Progress = Callable[[int], None]
#: A part of a simulation: takes a progress callback and returns its result. It must pickle.
Part = Callable[[Progress], Tally]


def run_parts(parts: Sequence[Part], progress: Progress) -> Iterator[Tally]:
    """Run each part in its own process and yield their results as they end.

    Exceptions of a part are raised here. Raises RuntimeError if a process ends without a result, for example because
    the system killed it for its memory. All processes have ended when this generator ends.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of numpy's linear algebra
    processes = []
    readers: list[Connection] = []
    try:
        for part in parts:
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            process = context.Process(target=_child, args=(part, writer), daemon=True)
            process.start()
            processes.append(process)
            writer.close()  # the child has the only other end, so that the pipe closes when it dies
        while readers:
            for ready in wait(readers):
                reader = cast(Connection, ready)
                word = _word(reader)
                if isinstance(word, int):
                    progress(word)
                    continue
                readers.remove(reader)
                reader.close()
                yield word
    finally:
        for reader in readers:
            reader.close()
        for process in processes:
            process.terminate()  # processes that have sent their result have ended or are about to
            process.join()


def _word(reader: Connection) -> int | Tally:
    try:
        word: int | Tally | Exception = reader.recv()
    except EOFError:
        raise RuntimeError("simulation: a process ended before it had told its figures") from None
    if isinstance(word, Exception):
        raise word
    return word


def _child(part: Part, writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also gets Ctrl-C and ends its children
    with suppress(BrokenPipeError), writer:  # if the parent was killed, the child ends as well
        try:
            writer.send(part(writer.send))
        except BrokenPipeError:
            raise
        except Exception as exc:  # the parent raises it
            writer.send(exc)
