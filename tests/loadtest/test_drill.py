"""The drill's nginx is configured as the ingress says, and its page tells of every request that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loadtest.common.servers import MeasurementError
from loadtest.drill import __main__ as drill
from loadtest.drill import nginx


def test_every_annotation_of_the_ingress_is_a_directive() -> None:
    told = nginx.directives()
    annotations = yaml.safe_load(nginx.INGRESS.read_text())["metadata"]["annotations"]
    assert list(told.values()) == list(annotations.values())
    assert told["proxy_next_upstream"] == "error http_503"
    assert told["client_max_body_size"] == "64m"


def test_an_annotation_that_is_not_known_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ingress.yaml").write_text(
        "metadata: {annotations: {nginx.ingress.kubernetes.io/affinity: cookie}}", encoding="utf-8"
    )
    with pytest.raises(MeasurementError, match=r"ingress\.yaml: affinity"):
        nginx.directives(tmp_path / "ingress.yaml")


def test_servers_drain_as_pods_do() -> None:
    settings = drill.drain_settings()
    text = drill.SETTINGS.read_text(encoding="utf-8")
    assert f"STARLING_DRAIN_GRACE_S={settings.drain_grace_s:g}\n" in text
    assert f"STARLING_DRAIN_LIMIT_S={settings.drain_limit_s:g}\n" in text
    assert settings.models == "demo"
