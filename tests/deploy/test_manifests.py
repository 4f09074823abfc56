"""The manifests of Kubernetes and of KServe."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from app.http.inference_routes import find_route
from app.http.routes.probes import LIVE_PATHS, READY_PATHS
from app.settings import Settings

from .kustomize import build, check_schemas, documents, named
from .server_facts import DEPLOY, DOCKERFILE, drain_s, image_variables, routes, settings_of

# The manifests of Kubernetes: valid by the published schemas, and true of the server, its image and each other.


LABELS = {"app.kubernetes.io/name": "starling"}
#: Of the Prometheus operator, which Kubernetes' own schemas leave out: the fields of its `spec` that are used here.
OPERATORS = {"ServiceMonitor": {"selector", "endpoints"}, "PrometheusRule": {"groups"}}


class Applied:
    """What an overlay makes. `settings`: what a pod starts with, of the image, the ConfigMap and the container."""

    def __init__(self, overlay: str) -> None:
        self.overlay = overlay
        self.resources = build(DEPLOY / "kubernetes" / overlay)
        self.deployment = self.spec("Deployment")
        self.pod: dict[str, Any] = self.deployment["template"]["spec"]
        (self.container,) = self.pod["containers"]
        (source,) = self.container["envFrom"]
        given = image_variables() | named(self.resources, "ConfigMap", source["configMapRef"]["name"])["data"]
        given |= {one["name"]: one.get("value", "of a secret") for one in self.container["env"]}
        self.settings = settings_of(given)

    def spec(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = named(self.resources, kind, "starling")["spec"]
        return found

    @property
    def paths(self) -> list[dict[str, Any]]:
        """What the ingress lets in."""
        (rule,) = self.spec("Ingress")["rules"]
        found: list[dict[str, Any]] = rule["http"]["paths"]
        return found


@pytest.fixture(params=["cpu", "gpu"])
def applied(request: pytest.FixtureRequest) -> Applied:
    return Applied(request.param)


def test_schemas_hold(applied: Applied) -> None:
    operators = [one for one in applied.resources if one["kind"] in OPERATORS]
    for one in operators:
        assert one["apiVersion"] == "monitoring.coreos.com/v1"
        assert set(one["spec"]) == OPERATORS[one["kind"]]
    check_schemas(*(one for one in applied.resources if one not in operators))


def test_settings_are_those_of_the_server(applied: Applied) -> None:
    assert applied.settings.host == "0.0.0.0"
    assert applied.settings.device == {"cpu": "cpu", "gpu": "cuda"}[applied.overlay]
    assert applied.settings.api_key


def test_user_is_the_images(applied: Applied) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[0]
    context = applied.pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
    assert context["runAsNonRoot"]


def test_an_image_of_the_node_itself_is_taken(applied: Applied) -> None:
    """What the page builds is tagged latest, for which Kubernetes always asks a registry."""
    assert applied.container["imagePullPolicy"] == "IfNotPresent"


def test_ports(applied: Applied) -> None:
    (port,) = applied.container["ports"]
    assert port["containerPort"] == applied.settings.port
    service = applied.spec("Service")["ports"][0]
    policy = applied.spec("NetworkPolicy")["ingress"][0]["ports"][0]
    assert service["targetPort"] == policy["port"] == port["name"]
    assert applied.spec("ServiceMonitor")["endpoints"][0]["port"] == service["name"]
    for path in applied.paths:
        assert path["backend"]["service"] == {"name": "starling", "port": {"name": service["name"]}}


@pytest.mark.parametrize(
    ("probe", "known"),
    [("startupProbe", LIVE_PATHS), ("livenessProbe", LIVE_PATHS), ("readinessProbe", READY_PATHS)],
)
def test_probes_ask_what_the_server_answers(applied: Applied, probe: str, known: frozenset[str]) -> None:
    asked = applied.container[probe]["httpGet"]
    assert asked["path"] in known
    assert asked["port"] == applied.container["ports"][0]["name"]


def test_services_give_pods_no_variables_that_are_settings(applied: Applied) -> None:
    """That of a service called starling would be STARLING_PORT, and an address."""
    assert applied.spec("Service")
    assert "port" in Settings.model_fields
    assert applied.pod["enableServiceLinks"] is False


def test_a_pod_may_drain_to_its_end(applied: Applied) -> None:
    """And goes on serving until readiness has been asked often enough to be red."""
    assert applied.pod["terminationGracePeriodSeconds"] > drain_s(applied.settings)
    probe = applied.container["readinessProbe"]
    red_after_s = probe["failureThreshold"] * probe["periodSeconds"] + probe["timeoutSeconds"]
    assert applied.settings.drain_grace_s > red_after_s


def test_what_is_written_has_a_volume(applied: Applied) -> None:
    assert applied.container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount["name"] for mount in applied.container["volumeMounts"]}
    assert {str(applied.settings.profile_dir), "/tmp"} <= set(mounts)
    assert set(mounts.values()) == {volume["name"] for volume in applied.pod["volumes"]}


def test_selectors_find_the_pods(applied: Applied) -> None:
    assert applied.deployment["template"]["metadata"]["labels"] == LABELS
    assert named(applied.resources, "Service", "starling")["metadata"]["labels"] == LABELS
    assert applied.spec("Service")["selector"] == LABELS
    (spread,) = applied.pod["topologySpreadConstraints"]
    for selector in (
        spread["labelSelector"], applied.deployment["selector"], applied.spec("NetworkPolicy")["podSelector"],
        applied.spec("PodDisruptionBudget")["selector"], applied.spec("ServiceMonitor")["selector"],
    ):  # fmt: skip
        assert selector["matchLabels"] == LABELS


def test_metrics_are_scraped_with_the_servers_key(applied: Applied) -> None:
    variables = {one["name"]: one for one in applied.container["env"]}
    (endpoint,) = applied.spec("ServiceMonitor")["endpoints"]
    key = variables["STARLING_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": key}
    assert endpoint["path"] in routes()


def test_autoscaler_scales_by_the_adapters_metric(applied: Applied) -> None:
    spec = applied.spec("HorizontalPodAutoscaler")
    target = spec["scaleTargetRef"]
    assert named(applied.resources, target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    (adapter,) = documents(DEPLOY / "monitoring" / "adapter-rules.yaml")
    (rule,) = adapter["rules"]
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert spec["minReplicas"] >= 2  # one is replaced while another serves


def leads_in(path: dict[str, Any], route: str) -> bool:
    below = path["pathType"] != "Exact" and route.startswith(f"{path['path']}/")
    return bool(below or route == path["path"])


def test_ingress_lets_in_inference_and_nothing_that_changes_the_server(applied: Applied) -> None:
    for path in applied.paths:
        assert any(leads_in(path, route) for route in routes()), path
    let_in = {route for route in routes() if any(leads_in(path, route) for path in applied.paths)}
    inferring = {route for route in routes() if find_route(re.sub(r"\{\w+\}", "x", route), b"") is not None}
    assert len(inferring) >= 4
    assert inferring < let_in
    assert "/v2" in let_in
    kept_inside = ("/metrics", "/v2/repository", "/v2/health", "/docs", "/openapi.json")
    assert [route for route in let_in if route.startswith(kept_inside)] == []


def test_ingress_fits_the_settings(applied: Applied) -> None:
    prefix = "nginx.ingress.kubernetes.io/"
    told = named(applied.resources, "Ingress", "starling")["metadata"]["annotations"]
    assert all(name.startswith(prefix) for name in told)
    assert told[f"{prefix}proxy-body-size"] == f"{applied.settings.max_body_mib:g}m"
    again = told[f"{prefix}proxy-next-upstream"].split()
    assert {"error", "http_503"} == set(again)  # a POST that was sent is not sent to the next: it may be fatal
    assert applied.settings.keep_alive_s > 60  # ingress-nginx's upstream-keepalive-timeout


# What docs/kubernetes.md shows of KServe: its fields, containers by Kubernetes' schemas, settings and routes of ours.
# KServe's own schemas are not here: the names of fields are those of the models in its Python package, release 0.21.


PAGE = (DEPLOY.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8").partition("## KServe")[2]
RUNTIME, SERVICE = (yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
CONTAINER: dict[str, Any] = RUNTIME["spec"]["containers"][0]
PREDICTOR: dict[str, Any] = SERVICE["spec"]["predictor"]


def test_its_pod_is_one_by_kubernetes_schemas() -> None:
    settings = settings_of(image_variables() | {one["name"]: one["value"] for one in CONTAINER["env"]})
    assert PREDICTOR["terminationGracePeriodSeconds"] > drain_s(settings)
    assert [port["containerPort"] for port in CONTAINER["ports"]] == [settings.port]
    for probe in ("readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in routes()
        assert CONTAINER[probe]["httpGet"]["port"] == settings.port
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == str(settings.port)
    spec = {name: PREDICTOR[name] for name in ("terminationGracePeriodSeconds", "enableServiceLinks")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "flower"}}
    check_schemas({**pod, "spec": {**spec, "containers": [CONTAINER]}})


def test_its_pod_has_as_long_to_start_as_others(applied: Applied) -> None:
    start = applied.container["startupProbe"]
    assert CONTAINER["livenessProbe"]["initialDelaySeconds"] >= start["failureThreshold"] * start["periodSeconds"]


def test_its_mode_is_one_that_takes_how_long_a_pod_may_drain() -> None:
    """Knative, KServe's default, refuses the whole service for that field (kserve/kserve#1546)."""
    assert "terminationGracePeriodSeconds" in PREDICTOR
    assert SERVICE["metadata"]["annotations"] == {"serving.kserve.io/deploymentMode": "Standard"}


def test_the_service_asks_for_what_the_runtime_has() -> None:
    model, spec = PREDICTOR["model"], RUNTIME["spec"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["protocolVersion"] in spec["protocolVersions"]
    assert model["modelFormat"].items() <= spec["supportedModelFormats"][0].items()
    assert CONTAINER["args"] == ["serve", "--model", "{{.Name}}=/mnt/models"]
    for path in ("/v2/models/flower/infer", "/v1/models/flower:predict"):
        assert path in PAGE
        assert find_route(path, b"")


def test_the_image_of_ones_own_ends_as_the_servers_user() -> None:
    (text,) = re.findall(r"^```dockerfile\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert lines[0] == ["FROM", "starling"]
    assert f"{' '.join(lines[-1])}\n" in DOCKERFILE
    variables = dict(value.split("=") for word, value in lines if word == "ENV")
    copied = dict(value.split() for word, value in lines if word == "COPY")
    assert copied == {".": variables["STARLING_MODELS"]}
    assert "\ndocker build -t my-starling mine\n" in PAGE  # from the checkout, .dockerignore sends none of your files
    assert settings_of(variables).models == "/models"
