"""Runs one measurement in its own process, so that a device error ends no other and memory starts empty.

`python -m loadtest.gpu.child RESULT JSON`, started by `measurements`. The JSON is {"what", "rehearsed", "given"}.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.common.paths import ROOT
from loadtest.common.servers import clean_environment

Found = dict[str, Any]


class ChildError(Exception):
    """A measurement failed or did not end in time."""


def run(what: str, given: Found, *, rehearsed: bool, limit_s: float) -> Found:
    """Run a measurement in a child process, which is killed after `limit_s`.

    Raises ChildError with the end of the child's output.
    """
    order = json.dumps({"what": what, "rehearsed": rehearsed, "given": given})
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "loadtest.gpu.child", str(result), order]
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=clean_environment(), timeout=limit_s, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            raise ChildError(f"{what}: not over after {limit_s:.0f} s") from None
        if ended.returncode or not result.exists():
            raise ChildError(f"{what}: ended with {ended.returncode}: {ended.stderr.strip()[-800:]}")
        found = json.loads(result.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found


def _figure6a(platform: Any, given: Found) -> Found:
    from . import figure6

    found = figure6.figure6a(platform, given["repeats"], given["rows"], given["pixels"])
    return {**found, "issue_us": figure6.issue_us(platform, given["rows"], given["pixels"])}


def _figure6b(platform: Any, given: Found) -> Found:
    from .figure6 import figure6b

    options = (given["rows"], given["most"], given["eager"])
    return figure6b(platform, Path(given["folder"]), given["precision"], given["repeats"], options)


def _effects(platform: Any, given: Found) -> Found:
    from .effects import Scale, effects

    return effects(platform, Path(given["folder"]), given["precisions"], Scale(**given["scale"]))


def _boundaries(platform: Any, given: Found) -> Found:
    from .boundaries import Scale, boundaries

    return boundaries(platform, Scale(**given["scale"]))


def _preemption(platform: Any, given: Found) -> Found:
    from .preemption import Scale, preemption

    return preemption(platform, Scale(**given["scale"]))


def _figure11(platform: Any, given: Found) -> Found:
    from .memory import figure11

    return figure11(platform, Path(given["folder"]), given["case"], given["largest"])


def _copies(platform: Any, given: Found) -> Found:
    from .memory import copies

    return copies(platform, Path(given["folder"]))


def _facts(platform: Any, given: Found) -> Found:
    return dict(platform.facts())


WHAT: dict[str, Callable[[Any, Found], Found]] = {
    "facts": _facts,
    "figure6a": _figure6a,
    "figure6b": _figure6b,
    "effects": _effects,
    "boundaries": _boundaries,
    "preemption": _preemption,
    "figure11": _figure11,
    "copies": _copies,
}


def main(arguments: list[str]) -> int:
    from app.engine.devices.streams.cuda import prepare
    from app.process import quiet_native_libraries

    quiet_native_libraries()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)  # the engine logs why it captured no graphs
    prepare()
    from .platforms import open_platform

    order = json.loads(arguments[1])
    with open_platform(order["rehearsed"]) as platform:
        found = WHAT[order["what"]](platform, order["given"])
    Path(arguments[0]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
