"""Replicas of a local Ray give the answers of the application alone, and Ray has their metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from background import eventually
from lifespan import serving
from models.folders import write_model

from app.main import create_app
from app.settings import Settings
from loadtest.common.paths import ROOT
from loadtest.common.servers import clean_environment, free_port

pytest.importorskip("ray", reason="`make test-more` installs Ray")
pytestmark = pytest.mark.e2e
DEMO = ROOT / "app" / "models" / "demo"
ROWS = json.dumps({"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [*range(8)]}]})
INFER = "/v2/models/echo/infer"
IMAGE = (DEMO / "digits" / "samples" / "3.jpg").read_bytes().decode("latin-1")
ASKED = [
    (INFER, ROWS, "application/json"),
    ("/v1/models/echo:predict", '{"instances": [[1, 2, 3, 4]]}', "application/json"),
    ("/v2/models/digits/infer", IMAGE, "image/jpeg"),
    (INFER, '{"inputs": 3}', "application/json"),
    ("/v2/models/echo/versions/7/infer", ROWS, "application/json"),
]
#: Read when Ray is imported. On Linux it would take the machine's address, and keep a token in the home folder.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'examples' / 'ray'}",
}


def processes(folder: str) -> list[int]:
    """Those of a Ray that are still there: their command lines name its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and folder.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def session(told: dict[str, Any]) -> dict[str, Any]:
    """What a session of Ray has seen, which leaves no process."""
    with tempfile.TemporaryDirectory(prefix="starling-ray-", ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("session.py")), folder, str(free_port())], cwd=ROOT,
                env={**clean_environment(), **ENVIRONMENT}, input=json.dumps(told), capture_output=True, text=True,
                timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-2000:]
            eventually(lambda: not processes(folder))
        finally:
            for pid in processes(folder):
                os.kill(pid, signal.SIGKILL)
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


async def test_answers_are_those_of_the_application_alone(tmp_path: Path) -> None:
    """From both replicas; a model that cannot serve fails its deployment with its reason; nothing is left of it."""
    write_model(tmp_path / "wrong", 'source = "nothing.py:Nobody"\n', code=None)
    quick = {"profile_budget_s": 0, "profile_dir": str(tmp_path), "policy": "no_wait"}  # no tables to solve
    options = {"num_replicas": 2, "graceful_shutdown_wait_loop_s": 0.1, "ray_actor_options": {"num_cpus": 0.5}}
    arguments = {"models": str(DEMO), **quick, **options}
    wrong = {"models": str(tmp_path), "max_constructor_retry_count": 1}
    seen = session({"arguments": arguments, "asked": ASKED, "wrong": wrong})
    assert len(seen["replicas"]) == 2
    assert "wrong: failed" in seen["refused"]
    async with serving(create_app(Settings(models=str(DEMO), profile_dir=tmp_path, profile_budget_s=0))) as (alone, _):
        for (path, body, kind), (status, text) in zip(ASKED, seen["answers"], strict=True):
            answer = await alone.post(path, content=body.encode("latin-1"), headers={"content-type": kind})
            assert (status, text.encode("latin-1")) == (answer.status_code, answer.content), path
