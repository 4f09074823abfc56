"""Overlays: what they name exists, and they merge to what kubectl makes of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from .kustomize import build, merged, named
from .server_facts import DEPLOY, settings_of

OVERLAYS = ("cpu", "gpu")


def plain(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In one order, as `kubectl` orders them by another rule."""
    return sorted(resources, key=lambda one: (one["kind"], one["metadata"]["name"]))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The overlay of one's own that the documentation shows, beside a copy of deploy/."""
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (tmp_path / "mine").mkdir()
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    for name, text in re.findall(r"^```yaml\n# mine/(\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    return tmp_path / "mine"


def test_the_documentations_overlay(mine: Path) -> None:
    found = build(mine)
    for one in found:
        if one["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    (container,) = named(found, "Deployment", "starling")["spec"]["template"]["spec"]["containers"]
    folder = named(found, "ConfigMap", "starling-settings")["data"]["STARLING_MODELS"]
    assert folder in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["image"] == "my-starling:1"
    agrees(mine, found)


def test_the_documentations_keys(mine: Path) -> None:
    """Files of a secret that is mounted as a folder, because a file by itself would not be renewed."""
    overlay = mine / "kustomization.yaml"
    text = overlay.read_text(encoding="utf-8")
    patched = text.replace("  - path: mine.yaml", "  - path: mine.yaml\n  - path: keys.yaml")
    overlay.write_text(patched, encoding="utf-8")
    found = build(mine)
    deployment = named(found, "Deployment", "starling")
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    settings = settings_of(told)
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "keys"]
    assert "subPath" not in mount
    assert {str(path.parent) for path in (settings.api_key_file, settings.admin_key_file) if path} == {
        mount["mountPath"]
    }
    assert {"keys", "models"} < {volume["name"] for volume in pod["volumes"]}
    agrees(mine, found)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays(overlay: str) -> None:
    agrees(DEPLOY / "kubernetes" / overlay, build(DEPLOY / "kubernetes" / overlay))


def agrees(folder: Path, ours: list[dict[str, Any]]) -> None:
    """Compared where there is a kubectl, which has kustomize in it; the merge here is what the other tests go by."""
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        command = [kubectl, "kustomize", str(folder)]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        text = re.sub(r"\bstarling-settings-[a-z0-9]{10}\b", "starling-settings", told)
        assert plain(list(yaml.safe_load_all(text))) == plain(ours)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_file_of_the_folders_is_used(overlay: str) -> None:
    """A manifest that no kustomization names would be checked and never applied."""
    folders = [DEPLOY / "kubernetes" / "base", DEPLOY / "kubernetes" / overlay, DEPLOY / "monitoring"]
    for folder in folders:
        told = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        # not resources of Kubernetes: what the adapter and a Prometheus without an operator are given
        others = {"kustomization.yaml", "adapter-rules.yaml", "alerts.yaml"}
        assert [path.name for path in folder.iterdir() if path.name not in others and path.name not in told] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_two_resources_have_one_name(overlay: str) -> None:
    resources = build(DEPLOY / "kubernetes" / overlay)
    for one in resources:
        named(resources, one["kind"], one["metadata"]["name"])


def test_merging_knows_entries_by_name() -> None:
    base = {"containers": [{"name": "a", "image": "x", "args": [1]}, {"name": "b"}], "kept": 1, "gone": 2}
    patch = {"containers": [{"name": "a", "args": [2, 3]}, {"name": "c"}], "gone": None}
    assert merged(base, patch) == {
        "containers": [{"name": "c"}, {"name": "a", "image": "x", "args": [2, 3]}, {"name": "b"}],
        "kept": 1,
    }


@pytest.mark.parametrize(
    ("told", "files", "message"),
    [
        ("resources: [none.yaml]", {}, "none.yaml"),
        ("namePrefix: x", {}, "namePrefix"),
        ("patches: [{path: p.yaml}]", {"p.yaml": "{kind: Service, metadata: {name: none}}"}, "Service none"),
        ("images: [{name: none, newName: a, newTag: b}]", {}, "image none"),
        ("configMapGenerator: [{name: none, behavior: merge}]", {}, "ConfigMap none"),
        ("configMapGenerator: [{name: new, literals: [A]}]", {}, "NAME=VALUE"),
    ],
)
def test_what_does_not_fit_is_found(told: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(f"kind: Kustomization\n{told}\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, OSError), match=message):
        build(tmp_path)
