"""The drill's nginx is configured as the ingress says, and its page tells of every request that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtest.common.servers import MeasurementError
from loadtest.drill import __main__ as drill
from loadtest.drill import nginx, page

LOAD = {
    "requests": 10, "completed": 10, "status": {"200": 10}, "errors": {}, "error_examples": {}, "p50_ms": 1.0,
    "p99_ms": 2.0, "max_ms": 1003.0,
}  # fmt: skip


def data(**changed: Any) -> dict[str, Any]:
    return {
        "facts": {"cores": "2"},
        "settings": {"model": "m", "rate": 50.0, "seconds": 9.0, "times": 1, "grace": 2.0, "limit": 30.0},
        "directives": {"proxy_next_upstream": "error"},
        "replacements": [{"server": "A", "exit": 0, "ended_s": 2.5, "ready_s": 3.25}],
        "load": LOAD,
        "attempts": {"200": 6, "502, 200": 4},
        **changed,
    }


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


def test_configuration(tmp_path: Path) -> None:
    told = nginx.configuration(tmp_path, 8080, [1, 2], {"proxy_read_timeout": "60"})
    for line in (
        "listen 127.0.0.1:8080;",
        "server 127.0.0.1:1 max_fails=0;",
        "server 127.0.0.1:2 max_fails=0;",
        "proxy_read_timeout 60;",
        f"access_log {tmp_path}/access.log attempts;",
    ):
        assert line in [one.strip() for one in told.splitlines()]
    assert told.count("{") == told.count("}")


def test_attempts_are_counted_by_what_was_tried() -> None:
    log = "200|200\n200|502, 200\n200|502, 200\n503|503, 503\n499|-\n"
    assert nginx.attempts(log) == {"200": 1, "502, 200": 2, "503, 503": 1, "499": 1}


def test_servers_drain_as_pods_do() -> None:
    settings = drill.drain_settings()
    text = drill.SETTINGS.read_text(encoding="utf-8")
    assert f"STARLING_DRAIN_GRACE_S={settings.drain_grace_s:g}\n" in text
    assert f"STARLING_DRAIN_LIMIT_S={settings.drain_limit_s:g}\n" in text
    assert settings.models == "demo"


def test_a_server_that_loads_is_no_failure() -> None:
    loading = {**LOAD, "completed": 8, "errors": {"status 503": 2}}
    assert page.missed(data(load=loading)) == []
    assert page.missed(data(load={**loading, "completed": 7})) == ["1 requests without a right answer"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"poison": {"status": 502, "lost": 2, "after": [502] * 10}}, "a fatal request ended 2 servers; then [502"),
        ({"poison": {"status": 502, "lost": 1, "after": [200, 500]}}, "a fatal request ended 1 servers; then [200"),
        ({"load": {**LOAD, "completed": 8, "errors": {"status 502": 2}}}, "2 x status 502"),
        ({"load": {**LOAD, "completed": 9}}, "1 requests without a right answer"),
        ({"replacements": [{"server": "A", "exit": 1}]}, "server A ended with 1"),
    ],
)
def test_failures_are_named(changed: dict[str, Any], line: str) -> None:
    assert page.missed(data()) == page.missed(data(poison={"status": 502, "lost": 1, "after": [200] * 10})) == []
    (found,) = page.missed(data(**changed))
    assert found.startswith(line)


def test_without_nginx_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(nginx.shutil, "which", lambda *_, **__: None)
    assert drill.EXPERIMENT.main(["--out", str(tmp_path)]) == 1
    assert "apt-get install nginx-light" in capsys.readouterr().err
