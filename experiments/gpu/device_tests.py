"""The tests marked `cuda`: if they fail, no figure means anything. Without a GPU those of the same device on stand-ins.

pytest loads only the plugins that these tests need, since others may be missing or of another version.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
from typing import Any

from experiments.gpu.blocks import Block
from loadtest.common.paths import ROOT
from loadtest.common.servers import clean_environment

_EACH_S = 60
_LAST_WORDS_S = 6.0  # an engine waits for its workers before
_LOG = 20_000  # characters, of tests that failed
_TESTS = "tests/engine/streams/test_cuda.py"
_TRIED = "tests/engine/streams/test_loading.py"
_ENDED = re.compile(r"\b(\d+) (passed|failed|errors?|skipped|deselected)\b")


def measure(block: Block) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        command += ["-p", "pytest_timeout", "--timeout", str(_EACH_S)]
    command += ["-W", "default", *(["-m", "cuda", _TESTS] if block.cuda else [_TRIED])]
    environment = {**clean_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    block.keep(tests=_TESTS if block.cuda else _TRIED)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        said, unfinished = said_within(running, block.left_s)
    if unfinished:
        block.keep(unfinished=True)
    block.keep(passed=running.returncode == 0, **_told(said))


def said_within(running: subprocess.Popen[str], seconds: float) -> tuple[str, bool]:
    """What a program prints, and whether it had to be ended. It is interrupted before: pytest then says which test it
    was at and which have failed.
    """
    for wait_s, number in ((seconds - _LAST_WORDS_S, signal.SIGINT), (_LAST_WORDS_S, signal.SIGKILL)):
        try:
            return running.communicate(timeout=wait_s)[0], number == signal.SIGKILL
        except subprocess.TimeoutExpired:
            running.send_signal(number)
    return running.communicate()[0], True


def _told(said: str) -> dict[str, Any]:
    lines = said.strip().splitlines()
    counts = {kind: int(number) for number, kind in _ENDED.findall(lines[-1] if lines else "")}
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "counts": counts,
        "failed_tests": failed[:40],
        "log": "" if counts.get("passed") and not failed else said[-_LOG:],
    }
