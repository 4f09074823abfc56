"""Runs `starling profile` as a user would, and tells the memory of a process and its children."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.common.paths import ROOT
from loadtest.common.servers import MeasurementError, clean_environment

_MIB = 1024  # KiB


def profile(folder: Path, *arguments: str) -> dict[str, Any]:
    """Measure batch times into a folder for servers, and return what the command prints as JSON.

    Raises MeasurementError with the command's error output.
    """
    command = [sys.executable, "-m", "app", "profile", *arguments, "--json"]
    environment = clean_environment() | {"STARLING_PROFILE_DIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise MeasurementError(f"starling profile {' '.join(arguments)}: {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process and all its descendants in MiB (Linux only)."""
    return sum(map(_resident_kib, below(pid))) / _MIB


def below(pid: int) -> Sequence[int]:
    """A process and all its descendants (Linux only)."""
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                found += below(int(child))
        except OSError:
            continue
    return found


def _resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
