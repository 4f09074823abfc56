"""A Ray of this machine alone, in a process of its own: `python local_ray.py FOLDER PORT CPUS`.

It reads commands, a JSON object per line: `{"name": NAME, "arguments": {}, "prefix": "/"}` deploys an application with
these arguments, `{"delete": NAME}` ends it. Each is answered by a line: `{"done": NAME}` or
`{"failed": why}`. At the end of the input everything is ended. `LocalRay` is the other side.

All files are in FOLDER, whose path must be short: Unix sockets have 107 characters. Everything listens on loopback.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import MeasurementError, clean_environment, free_port

PATH = f"{ROOT}:{ROOT / 'examples' / 'ray'}"
END_S = 60.0  # for replicas to drain and Ray's processes to end
_POLL_S = 0.05
_STORE_BYTES = 80 << 20  # about the least that Ray takes; requests travel beside it
#: Read when Ray is imported. On Linux it would take the machine's address, and keep a token in the home folder.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


class LocalRay:
    """A context manager. `cpus` is what Ray believes the machine to have; replicas take shares of it."""

    def __init__(self, cpus: int = 2) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="starling-ray-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._log = (self.folder / "driver.log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder), str(self.port), str(cpus)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT,
            env={**clean_environment(), "PYTHONPATH": PATH, **ENVIRONMENT},
        )  # fmt: skip
        self.metrics_port = 0

    def __enter__(self) -> Self:
        try:
            self.metrics_port = int(self._answer())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def deploy(self, name: str, arguments: dict[str, Any], prefix: str = "/") -> None:
        """Returns when it serves. Raises MeasurementError with Ray's reason."""
        self._tell({"name": name, "arguments": arguments, "prefix": prefix})
        self._answer()

    def delete(self, name: str) -> None:
        """End an application; returns when its replicas have drained and ended."""
        self._tell({"delete": name})
        self._answer()

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Ray prints too
                answer = json.loads(line)
                if "failed" in answer:
                    raise MeasurementError(answer["failed"])
                return answer["done"]
        self._log.seek(0)
        raise MeasurementError(f"Ray ended: {self._log.read()[-2000:]}")

    def processes(self) -> list[int]:
        """Ids of the processes of this Ray that are still there: their command lines name its folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if str(self.folder).encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def close(self) -> list[int]:
        """End everything; the ids of processes that had to be killed."""
        killed = []
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            limit_s = time.monotonic() + END_S / 6
            while self.processes() and time.monotonic() < limit_s:
                time.sleep(_POLL_S)
            for pid in self.processes():
                killed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
        finally:
            self._log.close()
            self._folder.cleanup()
        return killed


def main(folder: str, port: int, cpus: int) -> None:
    ray = importlib.import_module("ray")
    serve = importlib.import_module("ray.serve")
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": PATH}},  # replicas run this checkout
        _node_ip_address=LOOPBACK,
        _temp_dir=folder,
        _system_config={"metrics_report_interval_ms": 500},
    )
    try:
        serve.start(http_options={"host": LOOPBACK, "port": port})
        say(done=ray.nodes()[0]["MetricsExportPort"])
        for line in sys.stdin:
            try:
                say(done=carry_out(serve, json.loads(line)))
            except Exception as exc:  # whatever Ray and models raise is the answer
                say(failed=f"{type(exc).__name__}: {exc}")
    finally:
        serve.shutdown()
        ray.shutdown()


def carry_out(serve: Any, command: dict[str, Any]) -> str:
    if "delete" in command:
        serve.delete(command["delete"])
        return str(command["delete"])
    built = importlib.import_module("starling_ray").build(command["arguments"])
    try:
        serve.run(built, name=command["name"], route_prefix=command["prefix"])
    except RuntimeError as exc:  # which says that it failed; the replicas' words are in the status
        status = serve.status().applications[command["name"]]
        raise RuntimeError(" ".join(one.message for one in status.deployments.values())) from exc
    return str(command["name"])


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
