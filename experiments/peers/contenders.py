"""The servers that are compared: how each is installed, started, asked and stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtest.common.paths import LOOPBACK, ZOO
from loadtest.common.servers import Server, free_port, starling

APPS = Path(__file__).parent / "apps"
MODEL = ZOO / "mlp"
_START_S = 180.0
_QUIET = {"OMP_NUM_THREADS": "1", "BENTOML_DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Contender:
    """`package` is what pip installs and whose version is shown; `own`: it needs an environment of its own.

    `waits`: how long its batches wait for more rows is a setting of its own. `batched`: a request is a list of rows.
    """

    name: str
    package: str
    app: str = ""
    own: bool = False
    path: str = "/predict"
    ready: str = "/health"
    waits: bool = False
    batched: bool = False


CONTENDERS = (
    Contender("Starling", "starling-serve", path="/predict/mlp"),
    Contender("FastAPI by hand", "fastapi", "fastapi_app.py"),
    Contender("LitServe", "litserve", "litserve_app.py", own=True, waits=True),
    Contender("mosec", "mosec", "mosec_app.py", own=True, path="/inference", ready="/metrics", waits=True),
    Contender("BentoML", "bentoml", "bentoml_app.py", own=True, ready="/readyz", batched=True),
    Contender("Ray Serve", "ray", "ray_app.py", ready="/predict", waits=True),
)


def python_of(contender: Contender, folder: Path, say: Callable[[str], None]) -> str:
    """The interpreter that has the contender's package, which is installed into `folder` once.

    Its environment also sees this one's packages, after its own, so that torch need not be installed again.
    """
    if not contender.own:
        return sys.executable
    home = folder / contender.package
    python = home / "bin" / "python"
    if not python.exists():
        say(f"installing {contender.package}")
        venv.create(home, with_pip=True)
        (packages,) = home.glob("lib/python*/site-packages")
        (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", contender.package]
        subprocess.run(command, check=True, capture_output=True)
    return str(python)


def version_of(contender: Contender, python: str) -> str:
    code = f"from importlib.metadata import version; print(version({contender.package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class PeerServer(Server):
    """A server that starts processes of its own; what is left of them when it has ended is killed."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        port = free_port()
        self._mark = f"PEER_MARK={os.getpid()}-{port}"  # inherited by whatever it starts
        name, _, value = self._mark.partition("=")
        given = {**_QUIET, "PEER_MODEL": str(MODEL / "model.py"), **environment, "PEER_PORT": str(port), name: value}
        super().__init__([word.replace("PORT", str(port)) for word in command], port, environment=given)

    def stop(self) -> None:
        super().stop()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if f"{self._mark}\0".encode() in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), 9)


@contextmanager
def serving(contender: Contender, python: str, wait_ms: int, profiles: Path) -> Iterator[Server]:
    """The contender's server, ready. `profiles`: where Starling keeps what it measures while it is idle."""
    if not contender.app:
        with starling(["--model", f"mlp={MODEL}", "--threads", "1", "--profile-dir", str(profiles)]) as ours:
            ours.wait_ready()
            yield ours
        return
    command = [python, str(APPS / contender.app)]
    if contender.package == "bentoml":
        command = [python, "-m", "bentoml", "serve", "bentoml_app:Mlp", "--working-dir", str(APPS)]
        command += ["--host", LOOPBACK, "--port", "PORT"]
    with PeerServer(command, {"PEER_WAIT_MS": str(wait_ms)}) as server:
        server.wait_ready(contender.ready, _START_S)
        yield server
