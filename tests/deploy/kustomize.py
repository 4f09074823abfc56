"""What `kubectl kustomize` makes of the folders of deploy/; without a kubectl, tests that ask for it are skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Resource = dict[str, Any]


def documents(of: Path | str) -> list[Resource]:
    """All documents of a YAML file, or of a text. Raises OSError and yaml.YAMLError."""
    text = of.read_text(encoding="utf-8") if isinstance(of, Path) else of
    return [one for one in yaml.safe_load_all(text) if one is not None]


def build(folder: Path) -> list[Resource]:
    """The resources of an overlay. Names of generated ConfigMaps are without their suffix."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl, which has kustomize in it, is not installed")
    return documents(re.sub(r"\bstarling-settings-[a-z0-9]{10}\b", "starling-settings", _built(kubectl, folder)))


@cache
def _built(kubectl: str, folder: Path) -> str:
    ran = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def check_schemas(*resources: Resource) -> None:
    """By the oldest release with every field used here, and the newest that there are schemas of.

    The last call of a test: where the schemas are not installed the test is skipped, after all else that it checks.
    """
    schemas = pytest.importorskip("kubernetes_validate", reason="`make test-more` installs kubernetes-validate")
    for one in resources:
        for release in ("1.29", schemas.latest_version()):
            schemas.validate(one, release, strict=True)


def named(resources: list[Resource], kind: str, name: str) -> Resource:
    """The one resource of that kind and name."""
    (found,) = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found
