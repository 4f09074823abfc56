"""Replicas of a local Ray: the same answers, and a killed one loses only its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from background import eventually
from lifespan import with_state

from app.lifecycle import Lifecycle
from app.main import create_app
from app.settings import Settings
from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import MeasurementError

from .local_ray import LocalRay

pytest.importorskip("ray", reason="`make test-more` installs Ray")
pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parent / "repository"
DEMO = Path(__file__).parents[2] / "app" / "models" / "demo"
PATIENCE_S = 120.0  # a replica has come in 6 s, on a machine with six times the work that it has cores for in 60


class Served:
    """Two replicas of the model `held` and the demo models, in `folder`."""

    def __init__(self, ray: LocalRay, folder: Path) -> None:
        self.ray = ray
        self.folder = folder / "two"
        shutil.copytree(REPOSITORY, self.folder)
        for model in ("digits", "echo"):
            (self.folder / model).symlink_to(DEMO / model)
        os.mkfifo(self.folder / "held" / "leave")
        self._leave = os.open(self.folder / "held" / "leave", os.O_RDWR)  # so that neither side blocks in open
        settings = {
            "models": str(self.folder), "profile_budget_s": 0, "profile_dir": str(folder),
            "policy": "no_wait",  # it has no control tables, which take seconds to solve
        }  # fmt: skip
        options = {
            "num_replicas": 2, "health_check_period_s": 0.5, "graceful_shutdown_wait_loop_s": 0.1,
            "ray_actor_options": {"num_cpus": 0.5},  # of the two that Ray believes in: four replicas fit
        }  # fmt: skip
        ray.deploy("two", {**settings, **options})

    def post(self, path: str, body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
        connection = HTTPConnection(LOOPBACK, self.ray.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, body, {"content-type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ask(self, value: float) -> tuple[int, list[float]]:
        """A request of one row: its status and, of an answer, the value and the process that ran it."""
        row = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [value]}]}
        status, body = self.post("/v2/models/held/infer", json.dumps(row).encode())
        return status, json.loads(body)["outputs"][0]["data"] if status == 200 else []

    def ran(self) -> dict[float, int]:
        """By value, the process that has run it or is at it, since the last `forget`."""
        path = self.folder / "held" / "ran"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return {float(value): int(pid) for pid, value in (line.split() for line in lines)}

    def forget(self) -> None:
        (self.folder / "held" / "ran").unlink(missing_ok=True)

    def let_go(self, batches: int) -> None:
        """So many batches that wait, or will."""
        os.write(self._leave, b"." * batches)

    def close(self) -> None:
        os.close(self._leave)


@pytest.fixture(scope="module")
def ray() -> Iterator[LocalRay]:
    local = LocalRay()
    with local:
        yield local
        killed = local.close()
        assert killed == []
        assert not local.folder.exists()


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.fixture(scope="module")
def two(ray: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(ray, tmp_path_factory.mktemp("two"))
    yield served
    served.close()


def replicas(served: Served, count: int, pool: ThreadPoolExecutor) -> set[int]:
    """Ask until so many processes have answered."""

    def seen() -> set[int]:
        pids.update(int(row[1]) for _, row in pool.map(served.ask, range(1, 9)) if row)
        return pids if len(pids) >= count else set()

    pids: set[int] = set()
    found: set[int] = eventually(seen, PATIENCE_S)
    return found


async def test_answers_are_those_of_the_application_alone(two: Served, tmp_path: Path) -> None:
    image = (DEMO / "digits" / "samples" / "3.jpg").read_bytes()
    rows = json.dumps({"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [*range(8)]}]}).encode()
    asked = [
        ("/v2/models/echo/infer", rows, "application/json"),
        ("/v1/models/echo:predict", b'{"instances": [[1, 2, 3, 4]]}', "application/json"),
        ("/v2/models/digits/infer", image, "image/jpeg"),
        ("/v2/models/echo/infer", b'{"inputs": 3}', "application/json"),
        ("/v2/models/echo/versions/7/infer", rows, "application/json"),
    ]
    app = create_app(Settings(models=str(DEMO), profile_dir=tmp_path, profile_budget_s=0), lifecycle := Lifecycle())
    async with app.running() as state:
        await lifecycle.loaded.wait()
        transport = httpx.ASGITransport(app=with_state(app, state))
        async with httpx.AsyncClient(transport=transport, base_url="http://alone") as alone:
            for path, body, kind in asked:
                answer = await alone.post(path, content=body, headers={"content-type": kind})
                assert two.post(path, body, kind) == (answer.status_code, answer.content), path


def test_both_replicas_answer_and_ray_has_their_metrics(two: Served, pool: ThreadPoolExecutor) -> None:
    assert len(replicas(two, 2, pool)) == 2

    def counted() -> set[str]:
        connection = HTTPConnection(LOOPBACK, two.ray.metrics_port, timeout=PATIENCE_S)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        lines = [line for line in text.splitlines() if line.startswith("ray_starling_requests_total{")]
        mine = [line for line in lines if 'model="held"' in line and 'outcome="ok"' in line]
        found = {line.split('replica="')[1].split('"')[0] for line in mine}
        return found if len(found) == 2 else set()

    assert eventually(counted, PATIENCE_S)


def test_a_killed_replica_loses_only_what_it_had(two: Served, pool: ThreadPoolExecutor) -> None:
    first, second = sorted(replicas(two, 2, pool))
    two.forget()
    values = [-1.0 - number for number in range(12)]
    asked = {value: pool.submit(two.ask, value) for value in values}
    eventually(lambda: set(two.ran().values()) == {first, second}, PATIENCE_S)
    os.kill(first, signal.SIGKILL)
    # What the other has, and all that comes later, is answered; a batch has at most two rows.
    two.let_go(2 * len(values))
    answers = {value: future.result(PATIENCE_S) for value, future in asked.items()}
    lost = {value for value, (status, _) in answers.items() if status != 200}
    ran = two.ran()
    assert lost >= {value for value, pid in ran.items() if pid == first}, "what the killed one was running"
    assert not lost & {value for value, pid in ran.items() if pid != first}, "what the others ran"
    assert 0 < len(lost) < len(values)
    assert {answers[value][0] for value in lost} == {500}
    assert all(answers[value][1][0] == value for value in set(values) - lost)
    assert all(status == 200 for status, _ in pool.map(two.ask, range(1, 33)))
    assert first not in replicas(two, 2, pool)  # another has come in its place


def test_a_model_that_cannot_serve_fails_the_deployment_with_its_reason(ray: LocalRay, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "model.toml").write_text('source = "nothing.py:Nobody"\n', encoding="utf-8")
    with pytest.raises(MeasurementError, match="wrong: failed"):
        ray.deploy("wrong", {"models": str(tmp_path), "max_constructor_retry_count": 1}, prefix="/wrong")
    ray.delete("wrong")
