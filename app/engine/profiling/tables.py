"""Solves control tables for policies that use them, in a process of their own.

Until the tables of a model are solved, its batches are formed as by `no_wait`. They are solved again when its profile
has been measured or its live batches have moved it, and enter the scheduler as an input.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from subprocess import PIPE, Popen
from typing import Any, cast

from app.engine.profiling.profiled_model import ProfiledModel
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec

#: Its matrices are small: more threads would only take cores from batches.
_LONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
_CHILD = """
import os, pickle, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to all processes of a service: the server ends this one
# Batches and the event loop go first, at once: on two busy cores even a process of the lowest ordinary priority delays
# them, as it is not interrupted for each.
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(19)
asked, answers = sys.stdin.buffer, sys.stdout.buffer
try:
    while True:
        sys.path[:] = pickle.load(asked)
        solve, args, named = pickle.load(asked)
        try:
            found = solve(*args, **named)
        except Exception as exc:
            found = exc
        answers.write(pickle.dumps(found))
        answers.flush()
except (EOFError, BrokenPipeError):
    pass  # the server has ended
os._exit(0)  # an ordinary exit would try to write again
"""


class Solver:
    """Solves control tables in a child process, one at a time. It is started when first asked, and ended by `close`.

    A thread would take the interpreter lock from the event loop for a tenth of a second up to seconds: measured at
    6,000 requests a second, the mean latency was 5 to 10 times as long meanwhile. `multiprocessing` would import the
    program's main module again, which may be a script that starts a server.
    """

    def __init__(self) -> None:
        self._idle: Popen[bytes] | None = None  # a child that waits to be asked

    async def solve(self, *args: Any, **named: Any) -> ControlTables:
        """As `control.solve`. The child ends when this is cancelled.

        Raises what `control.solve` raises, OSError if there is no process, and EOFError if it has ended early.
        """
        child, self._idle = self._idle or _child(), None
        if child.poll() is not None:  # ended by others while it waited
            _end(child)
            child = _child()
        try:
            found = await asyncio.to_thread(_ask, child, (control.solve, args, named))
        except asyncio.CancelledError:
            child.kill()  # the thread, which waits for an answer, ends then
            raise
        self._idle = child
        if isinstance(found, Exception):
            raise found
        return cast(ControlTables, found)

    async def tables_of(self, model: ProfiledModel, corrected: Profile | None, spec: DeviceSpec) -> ControlTables:
        """From the model's profile, or from `corrected`: that profile as corrected by live batches."""
        profile = corrected or model.profile
        stages = () if any(part.cell for part in profile.stages) else profile.stages
        return await self.solve(
            profile, workers=spec.max_running, values=bool(stages), handovers=len(profile.parts), lead_ns=spec.lead_ns,
            stages=stages,
        )  # fmt: skip

    async def close(self) -> None:
        """End the child. Nothing is being solved."""
        if self._idle is not None:
            await asyncio.to_thread(_end, self._idle)


def _child() -> Popen[bytes]:
    """Started in 2 ms. By uvloop it would be forked, for which the server's memory is mapped again: 20 ms for 600 MiB.

    It has a group of its own, since a Ctrl-C is for the server alone; a session would get a share of the cores like the
    server's.
    """
    command = [sys.executable, "-c", _CHILD]
    return Popen(command, stdin=PIPE, stdout=PIPE, env={**os.environ, **_LONE}, process_group=0)


def _ask(child: Popen[bytes], question: object) -> Any:
    """Blocks until the child has answered. One that does not is ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(pickle.dumps(sys.path) + pickle.dumps(question))
        child.stdin.flush()
        return pickle.load(child.stdout)
    except BaseException:
        _end(child)
        raise


def _end(child: Popen[bytes]) -> None:
    """Blocks until it has ended."""
    child.kill()
    child.communicate()
