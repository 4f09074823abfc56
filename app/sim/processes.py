"""Parts of a simulation in processes of their own, with word of their progress."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import cast

from .report import Tally

Progress = Callable[[int], None]
#: A part: told whom to tell of requests fed, it simulates and returns its figures. It must pickle.
Part = Callable[[Progress], Tally]


def run_parts(parts: Sequence[Part], progress: Progress) -> Iterator[Tally]:
    """Run each part in a process of its own; yield their figures as they end.

    What a part raises is raised here. Raises RuntimeError when a process ends without a word, as one does that the
    system has killed for its memory. All processes have ended when this has.
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
            writer.close()  # the child holds the only other end: its death is the end of the pipe
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
            process.terminate()  # those that have told their figures are about to end, or have ended
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C as well, and ends its children
    with suppress(BrokenPipeError), writer:  # where the parent was killed nobody listens: that is the end, too
        try:
            writer.send(part(writer.send))
        except BrokenPipeError:
            raise
        except Exception as exc:  # whatever it is belongs to the parent, which shows it
            writer.send(exc)
