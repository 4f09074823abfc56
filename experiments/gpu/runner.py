"""Runs blocks, each in a process of its own, and appends the result of each to a file of JSON lines as it ends.

The next process starts while a block runs, so that its import of torch costs no time; it touches no device before it
gets its order.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments.gpu.blocks import Data, Spec
from loadtest.common.servers import Child

#: Beyond the time that a block was told, before it is ended.
GRACE_S = 5.0
_END_S = 2.0  # to end by itself when it is told
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")
_LOG = 6000  # characters of a failed block's output that are kept

Say = Callable[[str], None]


class BlockProcess(Child):
    """A process that waits for the block it is to run. It has a session of its own, with the servers that it starts."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / f"{number}.json"
        super().__init__([sys.executable, "-m", "experiments.gpu.child"], stdin=subprocess.PIPE, own_session=True)

    def run(self, spec: Spec, device: str, quick: bool, seconds: float) -> Data:
        """The block's figures. One that does not end by itself keeps those it had stored, and says so."""
        end = time.monotonic() + seconds  # the clock of all processes
        order = {"module": spec.module, "device": device, "quick": quick, "end": end, "path": str(self.path)}
        assert self.process.stdin is not None
        why = ""
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
            code = self.process.wait(seconds + GRACE_S)
            why = f"its process ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            why = f"not over after {seconds + GRACE_S:.0f} s"
        except OSError as exc:
            why = f"its process had ended: {exc}"
        found: Data = {}
        with suppress(OSError, ValueError):  # it ended before it could store anything
            found = json.loads(self.path.read_text(encoding="utf-8"))
        if why:
            found["failed"] = why
        if "failed" in found or "failures" in found:
            found.setdefault("log", self.last_output(_LOG))
        return found

    def stop(self) -> None:
        """End it and all that it started, by the number of its session."""
        for number, wait_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
        if self.process.poll() is None:
            return  # the driver holds it; it must not hold up the run
        super().stop()


def run_blocks(specs: Sequence[Spec], device: str, quick: bool, seconds: float, lines: Path, say: Say) -> None:
    """Run the blocks in order within `seconds`, and append a line for each. Some may be left out."""
    end = time.monotonic() + seconds
    patience = 3 if quick else 1  # where it is tried, other programs may be running
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as name:
        folder = Path(name)
        spare = BlockProcess(folder, 0)
        try:
            for number, spec in enumerate(specs, 1):
                allowed = min(patience * spec.seconds, end - GRACE_S - 2 * _END_S - time.monotonic())
                if allowed < spec.least and not quick:
                    say(f"{spec.name}: left out, {allowed:.0f} s are too few")
                    continue
                running, spare = spare, BlockProcess(folder, number)
                began = time.monotonic()
                with running:
                    found = running.run(spec, device, quick, allowed)
                took = round(time.monotonic() - began, 1)
                append(lines, {"block": spec.name, "device": device, "s": took, **found})
                say(f"{spec.name}: {found.get('failed') or 'done'}, {took:.0f} s")
        finally:
            spare.stop()


def append(path: Path, line: Data) -> None:
    """Add one line, which is on the disk when this returns. Of paths on this machine only the last part is kept."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(_without_paths(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_paths(one) for one in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value
