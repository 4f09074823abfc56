"""The compose file: what it mounts exists, what it names is there, and the settings are the server's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings

from .kustomize import documents
from .server_facts import DEPLOY, drain_s, image_variables, routes, settings_of

COMPOSE = DEPLOY / "compose"


@pytest.fixture
def compose() -> dict[str, Any]:
    (told,) = documents(COMPOSE / "compose.yaml")
    return told


@pytest.fixture
def settings(compose: dict[str, Any]) -> Settings:
    return settings_of(image_variables() | compose["services"]["starling"]["environment"])


def mounted(service: dict[str, Any]) -> dict[str, Path]:
    """The files of this repository that a service sees, by their path inside it."""
    parts = [volume.split(":") for volume in service["volumes"]]
    assert all(mode == "ro" for _, _, mode in parts)
    return {inside: (COMPOSE / outside).resolve() for outside, inside, _ in parts}


def test_what_is_mounted_exists(compose: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert all(path.is_file() for path in mounted(compose["services"][name]).values())


def test_server(compose: dict[str, Any], settings: Settings) -> None:
    told = compose["services"]["starling"]
    assert told["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert float(told["stop_grace_period"].removesuffix("s")) > drain_s(settings)
    assert {place.partition(":")[0] for place in told["tmpfs"]} == {"/tmp", str(settings.profile_dir)}
    assert settings.api_key


def test_prometheus_scrapes_it_with_its_key(compose: dict[str, Any], settings: Settings) -> None:
    files = mounted(compose["services"]["prometheus"])
    (told,) = documents(files["/etc/prometheus/prometheus.yml"])
    (job,) = told["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"starling:{settings.port}"]}]
    assert job.get("metrics_path", "/metrics") in routes()
    assert job["job_name"] == "starling"  # which alerts look for
    (secret,) = compose["services"]["prometheus"]["secrets"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": f"/run/secrets/{secret}"}
    assert compose["secrets"][secret] == {"environment": "STARLING_API_KEY"}
    assert compose["services"]["starling"]["environment"]["STARLING_API_KEY"].startswith("${STARLING_API_KEY:?")
    assert {f"/etc/prometheus/{name}" for name in told["rule_files"]} < set(files)


def test_grafana_has_prometheus_and_the_dashboard(compose: dict[str, Any]) -> None:
    files = mounted(compose["services"]["grafana"])
    provisioning = "/etc/grafana/provisioning"
    ((source,),) = [told["datasources"] for told in documents(files[f"{provisioning}/datasources/starling.yaml"])]
    assert source["url"] == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in compose["services"]["prometheus"]["ports"]
    ((provider,),) = [told["providers"] for told in documents(files[f"{provisioning}/dashboards/starling.yaml"])]
    folder = provider["options"]["path"]
    assert files[f"{folder}/starling.json"] == DEPLOY / "monitoring" / "dashboard.json"
