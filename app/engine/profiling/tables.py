"""Solves control tables for policies that use them, off the loop, and keeps them beside the profiles.

Until the tables of a model are solved, its batches are formed as by `no_wait`. They are solved again when its profile
has been measured, and enter the scheduler as an input.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from app.engine.profiling.cache import write_whole
from app.engine.profiling.profiled_model import Origin, ProfiledModel
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_FORMAT = 11  # of the stored tables; raise it when the theory behind them changes
#: Its matrices are small: more threads would only take cores from batches.
_LONE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
_IDLE_S = 15  # after so long without work the process ends: the second tables of two workers are due after 10
_CHILD = """
import os, pickle, select, sys
# Batches and the event loop go first, at once: on two busy cores even a process of the lowest ordinary priority delays
# them, as it is not interrupted for each.
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(19)
given, found = sys.stdin.buffer, sys.stdout.buffer
sys.path[:] = pickle.load(given)
try:
    while True:
        solve, args, named = pickle.load(given)
        try:
            result = pickle.dumps(solve(*args, **named))
        except Exception as exc:
            result = pickle.dumps(exc)
        found.write(len(result).to_bytes(8, "big") + result)
        found.flush()
        if not select.select([given], [], [], float(sys.argv[1]))[0]:
            break
except (EOFError, BrokenPipeError, KeyboardInterrupt):
    pass  # the server has ended
os._exit(0)  # an ordinary exit would try to write again
"""


class Solver:
    """A process that solves tables, one after another. It begins with the first, and ends when none comes for a while.

    Solving takes from a tenth of a second to seconds. A thread would take the interpreter lock from the event loop for
    as long: measured at 6,000 requests a second, the mean latency was 5 to 10 times as long meanwhile.
    `multiprocessing` would import the program's main module again, which may be a script that starts a server.
    """

    def __init__(self) -> None:
        self._process: Process | None = None

    async def solve(self, *args: Any, **named: Any) -> ControlTables:
        """As `control.solve`. Raises what that raises, and OSError or EOFError if the process ends meanwhile."""
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps((control.solve, args, named)))
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(8), "big")
            found = pickle.loads(await process.stdout.readexactly(size))
        except BaseException:  # also if it is cancelled: an answer that is not awaited must not become the next one
            await self.close()
            raise
        if isinstance(found, Exception):
            raise found
        return cast(ControlTables, found)

    async def _begun(self) -> Process:
        await self.close()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, str(_IDLE_S), stdin=PIPE, stdout=PIPE, env={**os.environ, **_LONE}
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(sys.path))
        return process

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def solved(
    model: ProfiledModel, corrected: Profile | None, spec: DeviceSpec, folder: Path | None, solver: Solver
) -> ControlTables:
    """The tables of this model, from its profile, or from `corrected`, its profile as corrected by live batches.

    They are read from the folder, or solved and stored there.
    """
    profile = corrected or model.profile
    stages = () if any(part.cell for part in profile.stages) else profile.stages
    named = {
        "workers": spec.max_running, "values": bool(stages), "handovers": len(profile.parts), "lead_ns": spec.lead_ns,
        "stages": stages,
    }  # fmt: skip
    # Times of a warm-up or of live batches differ at each start, so their tables are not stored.
    if folder is None or corrected or model.origin is Origin.WARM_UP:
        return await solver.solve(profile, **named)
    asked = (_FORMAT, replace(profile, extra={}), sorted(named.items()))
    path = folder / f"tables-{hashlib.sha256(repr(asked).encode()).hexdigest()[:24]}.json"
    tables = await asyncio.to_thread(_read, path)
    if tables is None:
        tables = await solver.solve(profile, **named)
        await asyncio.to_thread(_store, path, tables)
    return tables


def _read(path: Path) -> ControlTables | None:
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return ControlTables.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return None


def _store(path: Path, tables: ControlTables) -> None:
    try:
        write_whole(path, json.dumps(tables.to_dict()))
    except OSError as exc:  # it costs solving them again, no more
        log.debug("tables are not kept: %s", exc)
