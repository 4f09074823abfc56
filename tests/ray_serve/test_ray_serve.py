"""What a deployment is made of, without a running Ray."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from starling_ray import deployment as ray_serve
from starling_ray.deployment import build, deployment_options, starling_app

from app.errors import ConfigError
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


pytest.importorskip("ray", reason="`make test-more` installs Ray")


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"ray(\.|$)")  # its own, of what it imports
        return importlib.import_module("ray.serve")


def deployment(app: Any) -> Any:
    """The deployment of an application, whose fields are public; the application's one is not."""
    return app._bound_deployment


def test_no_option_of_a_deployment_is_a_setting(serve: ModuleType) -> None:
    assert not deployment_options(serve) & set(Settings.model_fields)
    assert {"num_replicas", "autoscaling_config", "ray_actor_options", "name"} <= deployment_options(serve)


def test_options_and_settings_are_told_apart(serve: ModuleType) -> None:
    scaled = {"min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 8}
    made = deployment(starling_app(models="demo", max_batch=8, autoscaling_config=scaled, name="mine"))
    assert made.name == "mine"
    assert made._deployment_config.autoscaling_config.max_replicas == 3
    assert made.init_args == ({"models": "demo", "max_batch": 8}, 1)


def test_arguments_from_a_shell_are_text(serve: ModuleType) -> None:
    options = {"num_replicas": "2", "name": "me", "ray_actor_options": '{"num_cpus": 2}'}
    made = deployment(build({"models": "demo", "threads": "4096", **options}))
    assert (made.num_replicas, made.name) == (2, "me")
    assert made.init_args == ({"models": "demo", "threads": "4096"}, 2)  # looked at on the replica's machine


def test_the_engine_sees_all_requests_before_ray_holds_one_back(serve: ModuleType) -> None:
    assert deployment(starling_app(models="demo")).max_ongoing_requests == 2048
    assert deployment(starling_app(models="demo", max_batch=64)).max_ongoing_requests == 4096
    made = deployment(starling_app(models="demo", max_queue=10, drain_limit_s=3))
    assert (made.max_ongoing_requests, made._deployment_config.graceful_shutdown_timeout_s) == (20, 8)
    assert deployment(starling_app(models="demo", max_ongoing_requests=7)).max_ongoing_requests == 7


def test_a_wrong_setting_is_known_before_anything_starts(serve: ModuleType) -> None:
    with pytest.raises(ConfigError, match="num_replica"):
        starling_app(num_replica=2)
    with pytest.raises(ConfigError, match="port: not a setting of replicas"):
        build({"port": 80})


def test_the_examples_of_the_documentation(serve: ModuleType) -> None:
    """Applications are made with these options; nothing is started."""
    page = (ROOT / "examples" / "ray" / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    made: list[Any] = []
    for text in blocks:
        text = text.replace("from ray import serve\n", "")
        exec(text, {"serve": SimpleNamespace(run=made.append), "starling_app": starling_app})
    assert len(made) == "".join(blocks).count("serve.run(") > 0


async def test_a_replica_that_is_stuck_is_not_healthy(serve: ModuleType) -> None:
    told: list[Any] = []
    replica = SimpleNamespace(failed=lambda: None, families=lambda: "families")
    one = SimpleNamespace(_replica=replica, _forwarder=SimpleNamespace(forward=told.append))
    check_health = ray_serve._replica_class(serve).check_health
    await check_health(one)
    assert told == ["families"]
    replica.failed = lambda: "worker 0 has died"
    with pytest.raises(RuntimeError, match="worker 0 has died"):
        await check_health(one)
