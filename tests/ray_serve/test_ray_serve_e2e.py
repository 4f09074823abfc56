"""Replicas of a local Ray give the answers of the application alone, and Ray has their metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
DEMO = Path(__file__).parents[2] / "app" / "models" / "demo"
PATIENCE_S = 120.0  # a replica has come in 6 s, on a machine with six times the work that it has cores for in 60
ROWS = json.dumps({"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [*range(8)]}]}).encode()
INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Two replicas of the demo models, which leave nothing."""
    with LocalRay() as local:
        local.deploy("two", {
            "models": str(DEMO), "profile_budget_s": 0, "profile_dir": str(tmp_path_factory.mktemp("profiles")),
            "policy": "no_wait",  # it has no control tables, which take seconds to solve
            "num_replicas": 2, "graceful_shutdown_wait_loop_s": 0.1,
            "ray_actor_options": {"num_cpus": 0.5},  # of the two that Ray believes in
        })  # fmt: skip
        yield local
        assert local.close() == []
        assert not local.folder.exists()


def post(ray: LocalRay, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
    url = f"http://{LOOPBACK}:{ray.port}{path}"
    answer = httpx.post(url, content=body, headers={"content-type": kind}, timeout=PATIENCE_S)
    return answer.status_code, answer.content


async def test_answers_are_those_of_the_application_alone(ray: LocalRay, tmp_path: Path) -> None:
    image = (DEMO / "digits" / "samples" / "3.jpg").read_bytes()
    asked = [
        (INFER, ROWS, "application/json"),
        ("/v1/models/echo:predict", b'{"instances": [[1, 2, 3, 4]]}', "application/json"),
        ("/v2/models/digits/infer", image, "image/jpeg"),
        (INFER, b'{"inputs": 3}', "application/json"),
        ("/v2/models/echo/versions/7/infer", ROWS, "application/json"),
    ]
    app = create_app(Settings(models=str(DEMO), profile_dir=tmp_path, profile_budget_s=0), lifecycle := Lifecycle())
    async with app.running() as state:
        await lifecycle.loaded.wait()
        transport = httpx.ASGITransport(app=with_state(app, state))
        async with httpx.AsyncClient(transport=transport, base_url="http://alone") as alone:
            for path, body, kind in asked:
                answer = await alone.post(path, content=body, headers={"content-type": kind})
                assert post(ray, path, body, kind) == (answer.status_code, answer.content), path


def test_both_replicas_answer_and_ray_has_their_metrics(ray: LocalRay) -> None:
    def counted() -> bool:
        assert post(ray, INFER, ROWS)[0] == 200
        lines = httpx.get(f"http://{LOOPBACK}:{ray.metrics_port}/metrics", timeout=PATIENCE_S).text.splitlines()
        mine = [line for line in lines if line.startswith("ray_starling_requests_total{") and 'model="echo"' in line]
        return len({line.split('replica="')[1].split('"')[0] for line in mine if 'outcome="ok"' in line}) == 2

    assert eventually(counted, PATIENCE_S)


def test_a_model_that_cannot_serve_fails_the_deployment_with_its_reason(ray: LocalRay, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "model.toml").write_text('source = "nothing.py:Nobody"\n', encoding="utf-8")
    with pytest.raises(MeasurementError, match="wrong: failed"):
        ray.deploy("wrong", {"models": str(tmp_path), "max_constructor_retry_count": 1}, prefix="/wrong")
    ray.delete("wrong")
