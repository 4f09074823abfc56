"""The manifests of Kubernetes and of KServe."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from app import server
from app.http.inference_routes import find_route
from app.http.routes.probes import LIVE_PATHS, READY_PATHS
from app.settings import Settings

from .kustomize import Resource, build, check_schemas, documents, named
from .server_facts import DEPLOY, DOCKERFILE, image_variables, routes, settings_of

# The manifests of Kubernetes: valid by the published schemas, and true of the server, its image and each other.


LABELS = {"app.kubernetes.io/name": "starling"}
#: Of the Prometheus operator, which Kubernetes' own schemas leave out: the fields of its `spec` that are used here.
OPERATORS = {"ServiceMonitor": {"selector", "endpoints"}, "PrometheusRule": {"groups"}}


@pytest.fixture(params=["cpu", "gpu"])
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def resources(overlay: str) -> list[Resource]:
    return build(DEPLOY / "kubernetes" / overlay)


@pytest.fixture
def deployment(resources: list[Resource]) -> dict[str, Any]:
    spec: dict[str, Any] = named(resources, "Deployment", "starling")["spec"]
    return spec


@pytest.fixture
def pod(deployment: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (one,) = pod["containers"]
    assert isinstance(one, dict)
    return one


@pytest.fixture
def settings(resources: list[Resource], container: dict[str, Any]) -> Settings:
    """What a pod starts with: the image's variables, the ConfigMap's, the container's own."""
    (source,) = container["envFrom"]
    given = image_variables() | named(resources, "ConfigMap", source["configMapRef"]["name"])["data"]
    for one in container["env"]:
        given[one["name"]] = one.get("value", "of a secret")
    return settings_of(given)


def test_schemas_hold(resources: list[Resource]) -> None:
    for one in resources:
        if one["kind"] in OPERATORS:
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
            assert set(one["spec"]) == OPERATORS[one["kind"]]
    check_schemas(*(one for one in resources if one["kind"] not in OPERATORS))


def test_settings_are_those_of_the_server(settings: Settings, overlay: str) -> None:
    assert settings.host == "0.0.0.0"
    assert settings.device == {"cpu": "cpu", "gpu": "cuda"}[overlay]
    assert settings.api_key


def test_user_is_the_images(pod: dict[str, Any]) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
    assert context["runAsNonRoot"]


def test_ports(resources: list[Resource], container: dict[str, Any], settings: Settings) -> None:
    (port,) = container["ports"]
    assert port["containerPort"] == settings.port
    service = named(resources, "Service", "starling")["spec"]["ports"][0]
    monitor = named(resources, "ServiceMonitor", "starling")["spec"]["endpoints"][0]
    policy = named(resources, "NetworkPolicy", "starling")["spec"]["ingress"][0]["ports"][0]
    assert service["targetPort"] == policy["port"] == port["name"]
    assert monitor["port"] == service["name"]
    for path in paths(resources):
        assert path["backend"]["service"] == {"name": "starling", "port": {"name": service["name"]}}


def test_probes_ask_what_the_server_answers(container: dict[str, Any]) -> None:
    for name, known in (
        ("startupProbe", LIVE_PATHS),
        ("livenessProbe", LIVE_PATHS),
        ("readinessProbe", READY_PATHS),
    ):
        asked = container[name]["httpGet"]
        assert asked["path"] in known
        assert asked["port"] == container["ports"][0]["name"]


def test_services_give_pods_no_variables_that_are_settings(resources: list[Resource], pod: dict[str, Any]) -> None:
    """That of a service called starling would be STARLING_PORT, and an address."""
    assert named(resources, "Service", "starling")
    assert "port" in Settings.model_fields
    assert pod["enableServiceLinks"] is False


def test_a_pod_may_drain_to_its_end(pod: dict[str, Any], container: dict[str, Any], settings: Settings) -> None:
    """And goes on serving until readiness has been asked often enough to be red."""
    drain_s = settings.drain_grace_s + settings.drain_limit_s + server._FORCE_AFTER_S
    assert pod["terminationGracePeriodSeconds"] > drain_s
    probe = container["readinessProbe"]
    assert settings.drain_grace_s > probe["failureThreshold"] * probe["periodSeconds"] + probe["timeoutSeconds"]


def test_what_is_written_has_a_volume(pod: dict[str, Any], container: dict[str, Any], settings: Settings) -> None:
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {str(settings.profile_dir), "/tmp"} <= set(mounts)
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}


def test_selectors_find_the_pods(resources: list[Resource], deployment: dict[str, Any], pod: dict[str, Any]) -> None:
    assert deployment["template"]["metadata"]["labels"] == deployment["selector"]["matchLabels"] == LABELS
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == LABELS
    service = named(resources, "Service", "starling")
    assert service["spec"]["selector"] == service["metadata"]["labels"] == LABELS
    assert named(resources, "PodDisruptionBudget", "starling")["spec"]["selector"]["matchLabels"] == LABELS
    assert named(resources, "NetworkPolicy", "starling")["spec"]["podSelector"]["matchLabels"] == LABELS
    assert named(resources, "ServiceMonitor", "starling")["spec"]["selector"]["matchLabels"] == LABELS


def test_metrics_are_scraped_with_the_servers_key(resources: list[Resource], container: dict[str, Any]) -> None:
    (key,) = (one["valueFrom"]["secretKeyRef"] for one in container["env"] if one["name"] == "STARLING_API_KEY")
    (endpoint,) = named(resources, "ServiceMonitor", "starling")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": key}
    assert endpoint["path"] in routes()


def test_autoscaler_scales_by_the_adapters_metric(resources: list[Resource]) -> None:
    spec = named(resources, "HorizontalPodAutoscaler", "starling")["spec"]
    target = spec["scaleTargetRef"]
    assert named(resources, target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    (adapter,) = documents(DEPLOY / "monitoring" / "adapter-rules.yaml")
    (rule,) = adapter["rules"]
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert spec["minReplicas"] >= 2  # one is replaced while another serves


def paths(resources: list[Resource]) -> list[dict[str, Any]]:
    (rule,) = named(resources, "Ingress", "starling")["spec"]["rules"]
    found: list[dict[str, Any]] = rule["http"]["paths"]
    return found


def leads_in(path: dict[str, Any], route: str) -> bool:
    if path["pathType"] == "Exact":
        return bool(route == path["path"])
    return route == path["path"] or route.startswith(f"{path['path']}/")


def test_ingress_lets_in_inference_and_nothing_that_changes_the_server(resources: list[Resource]) -> None:
    let_in = {route for route in routes() if any(leads_in(path, route) for path in paths(resources))}
    inferring = {route for route in routes() if find_route(re.sub(r"\{\w+\}", "x", route), b"") is not None}
    assert len(inferring) >= 4
    assert inferring < let_in
    assert "/v2" in let_in
    kept_inside = ("/metrics", "/v2/repository", "/v2/health", "/docs", "/openapi.json")
    assert [route for route in let_in if route.startswith(kept_inside)] == []
    for path in paths(resources):
        assert any(leads_in(path, route) for route in routes()), path


def test_ingress_fits_the_settings(resources: list[Resource], settings: Settings) -> None:
    prefix = "nginx.ingress.kubernetes.io/"
    told = named(resources, "Ingress", "starling")["metadata"]["annotations"]
    assert all(name.startswith(prefix) for name in told)
    assert told[f"{prefix}proxy-body-size"] == f"{settings.max_body_mib:g}m"
    again = told[f"{prefix}proxy-next-upstream"].split()
    assert {"error", "http_503"} == set(again)  # a POST that was sent is not sent to the next: it may be fatal
    assert settings.keep_alive_s > 60  # ingress-nginx's upstream-keepalive-timeout


# What docs/kubernetes.md shows of KServe: its fields, containers by Kubernetes' schemas, settings and routes of ours.
# KServe's own schemas are not here: the names of fields are those of the models in its Python package, release 0.21.


PAGE = (DEPLOY.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8").partition("## KServe")[2]
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
