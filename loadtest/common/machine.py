"""The machine that figures were measured on: enough to compare, nothing that identifies it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from app.machine import cpu_cores

PACKAGES = ("starling-serve", "torch", "uvicorn", "uvloop", "httptools", "orjson", "fastapi")


def cpu_model() -> str:
    """The processor's name, or its architecture if the name is not available."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """Average number of runnable processes over the last minute; None if the platform does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe() -> dict[str, str]:
    """Facts for a page. Call it before measuring, because it reads the load average."""
    load = load_average()
    return {
        "cpu": cpu_model(),
        "cores": str(cpu_cores()),
        "system": f"{platform.system()} {platform.machine()}",
        "load average at start": "not known" if load is None else f"{load:.2f}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }
