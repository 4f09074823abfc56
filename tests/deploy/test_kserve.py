"""What docs/kserve.md shows: fields that KServe has, containers by Kubernetes' schemas, settings and routes of ours.

KServe's own schemas are not here: the names of fields are those of the models in its Python package, release 0.21.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from app.http.inference_routes import find_route

from .kustomize import check_schemas
from .server_facts import DEPLOY, image_variables, routes, settings_of

PAGE = (DEPLOY.parent / "docs" / "kserve.md").read_text(encoding="utf-8")
RUNTIME, SERVICE = (yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
CONTAINER: dict[str, Any] = RUNTIME["spec"]["containers"][0]
PREDICTOR: dict[str, Any] = SERVICE["spec"]["predictor"]


def test_its_pod_is_one_by_kubernetes_schemas() -> None:
    spec = {name: PREDICTOR[name] for name in ("terminationGracePeriodSeconds", "enableServiceLinks")}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "flower"},
        "spec": {**spec, "containers": [CONTAINER]},
    }
    settings = settings_of(image_variables() | {one["name"]: one["value"] for one in CONTAINER["env"]})
    assert spec["terminationGracePeriodSeconds"] > settings.drain_grace_s + settings.drain_limit_s + 5
    assert [port["containerPort"] for port in CONTAINER["ports"]] == [settings.port]
    for probe in ("readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in routes()
        assert CONTAINER[probe]["httpGet"]["port"] == settings.port
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == str(settings.port)
    check_schemas(pod)


def test_the_service_asks_for_what_the_runtime_has() -> None:
    model, spec = PREDICTOR["model"], RUNTIME["spec"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert model["modelFormat"].items() <= spec["supportedModelFormats"][0].items()
    assert CONTAINER["args"] == ["serve", "--model", "{{.Name}}=/mnt/models"]
    assert all(
        path in PAGE and find_route(path, b"") for path in ("/v2/models/flower/infer", "/v1/models/flower:predict")
    )


def test_the_image_of_ones_own_ends_as_the_servers_user() -> None:
    (text,) = re.findall(r"^```dockerfile\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    ours = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    assert lines[0] == ["FROM", "starling"]
    assert f"{' '.join(lines[-1])}\n" in ours
    variables = dict(value.split("=") for word, value in lines if word == "ENV")
    assert variables["STARLING_MODELS"] in [value.split()[1] for word, value in lines if word == "COPY"]
    assert settings_of(variables).models == "/models"
