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
try:
    sys.path[:] = pickle.load(sys.stdin.buffer)
    solve, args, named = pickle.load(sys.stdin.buffer)
    try:
        found = solve(*args, **named)
    except Exception as exc:
        found = exc
    sys.stdout.buffer.write(pickle.dumps(found))
    sys.stdout.buffer.flush()
except (EOFError, BrokenPipeError):
    pass  # the server has ended
os._exit(0)  # an ordinary exit would try to write again
"""


async def solve_aside(*args: Any, **named: Any) -> ControlTables:
    """As `control.solve`, in a new process, which ends with it or when this is cancelled.

    Raises what `control.solve` raises, OSError if there is no process, and EOFError if it has ended early. Solving
    takes from a tenth of a second to seconds. A thread would take the interpreter lock from the event loop for as long:
    measured at 6,000 requests a second, the mean latency was 5 to 10 times as long meanwhile. `multiprocessing` would
    import the program's main module again, which may be a script that starts a server.
    """
    process = _child()
    try:
        asked = pickle.dumps(sys.path) + pickle.dumps((control.solve, args, named))
        answer, _ = await asyncio.to_thread(process.communicate, asked)
    finally:
        process.kill()  # nothing is sent to one that has ended; the thread waits for it
    found = pickle.loads(answer)
    if isinstance(found, Exception):
        raise found
    return cast(ControlTables, found)


def _child() -> Popen[bytes]:
    """Started in 2 ms. By uvloop it would be forked, for which the server's memory is mapped again: 20 ms for 600 MiB.

    It has a group of its own, since a Ctrl-C is for the server alone; a session would get a share of the cores like the
    server's.
    """
    command = [sys.executable, "-c", _CHILD]
    return Popen(command, stdin=PIPE, stdout=PIPE, env={**os.environ, **_LONE}, process_group=0)


async def solved(model: ProfiledModel, corrected: Profile | None, spec: DeviceSpec) -> ControlTables:
    """The tables of this model, from its profile, or from `corrected`, its profile as corrected by live batches."""
    profile = corrected or model.profile
    stages = () if any(part.cell for part in profile.stages) else profile.stages
    return await solve_aside(
        profile, workers=spec.max_running, values=bool(stages), handovers=len(profile.parts), lead_ns=spec.lead_ns,
        stages=stages,
    )  # fmt: skip
