"""Solves control tables for policies that use them, off the loop, and keeps them beside the profiles.

Until the tables of a model are solved, its batches are formed as by `no_wait`. They are solved again when its profile
has been measured, and enter the scheduler as an input.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from app.engine.profiling.cache import write_whole
from app.engine.profiling.profiled_model import Origin, ProfiledModel
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_FORMAT = 9  # of the stored tables; raise it when the theory behind them changes
#: Batches and the event loop go first, but not so far that it takes long: with the lowest priority (19), on two busy
#: cores, a small model at 0.85 of its peak had 1.6 times its mean latency for as long as tables were being solved.
_NICE = 5
_CHILD = """
import os, pickle, sys
os.nice(int(sys.argv[1]))
sys.path[:] = pickle.load(sys.stdin.buffer)
solve, args, named = pickle.load(sys.stdin.buffer)
try:
    sys.stdout.buffer.write(pickle.dumps(solve(*args, **named)))
    sys.stdout.buffer.flush()
except BrokenPipeError:
    os._exit(1)  # the server has ended meanwhile; an ordinary exit would try to write again
"""


class DaemonThreads(Executor):
    """A daemon thread for each call. The process does not wait for them at its exit.

    It would wait for the threads of a ThreadPoolExecutor, and solving can take a minute on a busy machine.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as exc:
                    future.set_exception(exc)

        threading.Thread(target=run, name="tables", daemon=True).start()
        return future


async def solved(
    model: ProfiledModel, corrected: ModelProfile | None, spec: DeviceSpec, folder: Path | None
) -> ControlTables:
    """The tables of this model, from its profile, or from `corrected`, its profile as corrected by live batches."""
    # Times of a warm-up or of live batches differ at each start, so their tables are not stored.
    folder = None if corrected or model.origin is Origin.WARM_UP else folder
    work = partial(tables_of, corrected or model.profile, spec.max_running, folder, spec.lead_ns, solve_aside)
    return await asyncio.get_running_loop().run_in_executor(DaemonThreads(), work)


def tables_of(
    profile: ModelProfile,
    workers: int,
    folder: Path | None,
    lead_ns: int = 0,
    solve: Callable[..., ControlTables] = control.solve,
) -> ControlTables:
    """Read the tables from the folder, or solve and store them. Slow: not for the event loop."""
    stage = profile.stage(workers)
    handovers = len(profile.parts)
    stages = () if any(part.cell for part in profile.stages) else tuple(part.stage() for part in profile.stages)
    values = bool(stages)  # tables of a model in stages also hold the value of each state
    asked = (_FORMAT, stage, handovers, lead_ns, workers, stages)
    path = folder and folder / f"tables-{hashlib.sha256(repr(asked).encode()).hexdigest()[:24]}.json"
    if path:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            return ControlTables.from_dict(json.loads(path.read_text(encoding="utf-8")))
    tables = solve(stage, workers=workers, values=values, handovers=handovers, lead_ns=lead_ns, stages=stages)
    if path:
        try:
            write_whole(path, json.dumps(tables.to_dict()))
        except OSError as exc:  # it costs solving them again, no more
            log.debug("tables are not kept: %s", exc)
    return tables


def solve_aside(*args: Any, **named: Any) -> ControlTables:
    """As `control.solve`, in a process of its own. Blocks its thread, without the interpreter lock.

    Solving takes about a second. A thread would take that lock from the event loop for as long: measured at 6,000
    requests a second, the mean latency was 5 to 10 times as long meanwhile. `multiprocessing` would import the
    program's main module again, which may be a script that starts a server.
    """
    given = pickle.dumps(sys.path) + pickle.dumps((control.solve, args, named))
    command = [sys.executable, "-c", _CHILD, str(_NICE)]
    solved: ControlTables = pickle.loads(
        subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout
    )
    return solved
