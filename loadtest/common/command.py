"""Runs `starling` as a user would and measures the time and memory that it and its children use."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.common.paths import ROOT
from loadtest.common.servers import MeasurementError, clean_environment

SAMPLE_S = 1.0
_MIB = 1024  # KiB


class CommandError(MeasurementError):
    """A command failed: its exit status was not 0."""


@dataclass
class Ran:
    """A finished command. `samples`: (seconds since its start, resident MiB of it and all its descendants)."""

    output: str
    wall_s: float
    cpu_s: float  # user and system, descendants included; other load on the machine affects it less than wall time
    samples: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cell(self) -> dict[str, Any]:
        cell = json.loads(self.output)
        assert isinstance(cell, dict)
        return cell


def starling(*arguments: str, profile_dir: Path | None = None) -> Ran:
    """Run `starling` with these arguments until it ends. Raises CommandError with its error output.

    Profiles are stored in `profile_dir`, or deleted after the run: the user's servers must not use them.
    """
    command = [sys.executable, "-m", "app", *arguments]
    started_s, cpu_before_s = time.perf_counter(), _children_cpu_s()
    samples: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        tempfile.TemporaryDirectory(prefix="starling-bench-") as kept,
    ):
        environment = clean_environment() | {"STARLING_PROFILE_DIR": str(profile_dir or kept)}
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, env=environment)
        try:
            while True:
                try:
                    process.wait(SAMPLE_S)
                    break
                except subprocess.TimeoutExpired:
                    samples.append((time.perf_counter() - started_s, resident_mib(process.pid)))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        wall_s = time.perf_counter() - started_s
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise CommandError(f"starling {' '.join(arguments)}: {process.returncode}: {err.read()[-500:]}")
        return Ran(out.read(), wall_s, _children_cpu_s() - cpu_before_s, samples)


def profile(model: str, source: Path, folder: Path, budget_s: float, threads: int = 1) -> Ran:
    """Measure the batch times of a model of one worker into the folder where servers look for them."""
    return starling(
        "profile", model, "--model", f"{model}={source}", "--threads", str(threads), "--workers", "1", "--budget-s",
        str(budget_s), "--json", profile_dir=folder,
    )  # fmt: skip


def _children_cpu_s() -> float:
    """CPU time of all ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident_mib(pid: int) -> float:
    """Resident memory of a process and all its descendants in MiB (Linux only)."""
    return sum(map(_resident_kib, _below(pid))) / _MIB


def _below(pid: int) -> Sequence[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                found += _below(int(child))
        except OSError:
            continue
    return found


def _resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
