"""Overlays: kubectl builds them, every file is used, and so are those that the documentation shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from .kustomize import build, check_schemas, named
from .server_facts import DEPLOY

OVERLAYS = ("cpu", "gpu")


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
    (container,) = named(found, "Deployment", "starling")["spec"]["template"]["spec"]["containers"]
    folder = named(found, "ConfigMap", "starling-settings")["data"]["STARLING_MODELS"]
    assert folder in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["image"] == "my-starling:1"
    check_schemas(*(one for one in found if one["apiVersion"] != "monitoring.coreos.com/v1"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_file_of_the_folders_is_used(overlay: str) -> None:
    """A manifest that no kustomization names would be checked and never applied."""
    folders = [DEPLOY / "kubernetes" / "base", DEPLOY / "kubernetes" / overlay, DEPLOY / "monitoring"]
    for folder in folders:
        told = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        # not resources of Kubernetes: what the adapter and a Prometheus without an operator are given
        others = {"kustomization.yaml", "adapter-rules.yaml", "alerts.yaml"}
        assert [path.name for path in folder.iterdir() if path.name not in others and path.name not in told] == []
