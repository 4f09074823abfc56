"""A child process that calls functions for the server.

For work that holds the interpreter lock: on a thread it would stop the event loop for as long. `multiprocessing` would
import the program's main module again, which may be a script that starts a server.
"""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from collections.abc import Callable
from subprocess import PIPE, Popen
from typing import Any

#: Its matrices are small: more threads would only take cores from batches.
_LONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
#: As it was before any model's code, whose folders may have an `app` of their own.
_PATH = [entry or os.getcwd() for entry in sys.path]
_CHILD = """
import os, pickle, signal, sys
for sent in (signal.SIGINT, signal.SIGTERM):  # to all processes of a service: the server ends this one
    signal.signal(sent, signal.SIG_IGN)
if sys.argv[1] == "idle" and hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(5)
asked, answers = sys.stdin.buffer, sys.stdout.buffer
sys.path[:] = sys.argv[2:]
try:
    while True:
        function, args, named = pickle.load(asked)
        try:
            found = function(*args, **named)
        except Exception as exc:
            found = exc
        answers.write(pickle.dumps(found))
        answers.flush()
except (EOFError, BrokenPipeError):
    pass  # the server has ended
os._exit(0)  # an ordinary exit would try to write again
"""


class Child:
    """Started in 2 ms. By uvloop it would be forked, for which the server's memory is mapped again: 20 ms for 600 MiB.

    It has a group of its own, since a Ctrl-C is for the server alone; a session would get a share of the cores like the
    server's. `idle`: it runs where nothing else would: on two busy cores even a process of the lowest ordinary priority
    delays batches and the event loop, as it is not interrupted for each.
    """

    def __init__(self, *, idle: bool = False) -> None:
        command = [sys.executable, "-P", "-c", _CHILD, "idle" if idle else "nice", *_PATH]
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, env={**os.environ, **_LONE}, process_group=0)

    def ask(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a function of a module there. Blocks.

        Raises what it raises, and OSError or EOFError if the child has ended.
        """
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(pickle.dumps((function, args, named)))
            asked.flush()
            found = pickle.load(answers)
        except BaseException:
            self.end()
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        """Blocks until it has ended, which is at once."""
        self.process.kill()
        self.process.communicate()


def compiled(source: bytes, path: str, optimize: int) -> bytes:
    """The code of a source, as `marshal` writes it. Raises SyntaxError and ValueError."""
    return marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=optimize))
