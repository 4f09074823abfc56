"""Servers forked from a process that has imported everything: torch and FastAPI cost each start 3 s of CPU.

What a fork leaves out is the command's own start, and how the interpreter ends: tests of either start the command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

FORKING = multiprocessing.get_context("forkserver")
#: The second costs 4 s: only where tests of this run have imported transformers.
PRELOADED = ["tests.e2e.preloaded", "tests.e2e.preloaded_transformers"]


class Forked:
    """A child that runs the command: of `subprocess.Popen` as much as the tests use.

    Its output and errors are one stream, `stdout`.
    """

    def __init__(self, arguments: list[str], root: Path, env: Mapping[str, str]) -> None:
        FORKING.set_forkserver_preload(PRELOADED if "transformers" in sys.modules else PRELOADED[:1])
        reader, writer = FORKING.Pipe(duplex=False)
        self._child = FORKING.Process(target=run, args=(arguments, root, dict(env), writer))
        self._child.start()
        writer.close()
        self.stdout: TextIO | None = os.fdopen(os.dup(reader.fileno()))
        reader.close()
        assert self._child.pid is not None
        self.pid = self._child.pid

    def poll(self) -> int | None:
        return self._child.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired where it runs on."""
        self._child.join(timeout)
        if self._child.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._child), timeout or 0)
        return self._child.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(arguments: list[str], root: Path, env: dict[str, str], output: Connection) -> None:
    """In the child: what the interpreter would have done, and then the command."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # as an interpreter sets them up where they are a pipe
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(env)
    os.chdir(root)
    sys.path[:] = [str(root), *(path for path in sys.path if not path.startswith(str(root / "tests")))]
    sys.argv = ["app", *arguments]
    from app.cli.commands import main  # here: the tests' own process needs none of it

    main()
