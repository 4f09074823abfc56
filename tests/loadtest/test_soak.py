"""The drill and the soak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from background import eventually

from loadtest.common import experiment
from loadtest.common.servers import MeasurementError
from loadtest.drill import __main__ as drill
from loadtest.drill import nginx
from loadtest.soak import __main__ as soak
from loadtest.soak import faults, log_reader
from loadtest.soak.memory import Trend, trend

# The soak: memory that grows is found, and a short one loses nothing.


def readings(seconds: int, per_hour: float = 0.0, seed: int = 0, noise: float = 0.3) -> tuple[list[float], list[float]]:
    """Of a process whose memory comes in steps that stay, once a second."""
    random = np.random.default_rng(seed)
    at = np.arange(seconds, dtype=float)
    steps = np.repeat(random.normal(0, noise, seconds // 10 + 1), 10)[:seconds]
    return at.tolist(), (300 + per_hour / 3600 * at + steps).tolist()


def judged(*given: Any, **more: Any) -> Trend:
    found = trend(*readings(*given, **more), 60)
    assert found is not None
    return found


@pytest.mark.parametrize("per_hour", [3.0, 12.0])
def test_a_leak_is_found(per_hour: float) -> None:
    for seed in range(10):
        found = judged(1800, per_hour, seed=seed)
        assert not found.flat
        assert found.low <= per_hour <= found.high or abs(found.per_hour - per_hour) < 1
        assert found.grown == pytest.approx(per_hour * 1740 / 3600, abs=0.6)


def test_lines_that_a_server_has_lost_are_added_up_as_its_log_tells() -> None:
    told = b"2026-01-01 00:00:00,000 WARNING starling.logs: %d lines to <stderr> were lost: it was not read\n"
    with log_reader.LogReader() as reader:
        for piece in (b"a line\n" + (told % 12)[:60], (told % 12)[60:], b"x\n" * 9 + told % 30):
            reader.output.write(piece)
            reader.output.flush()
        reader.read_on()
        eventually(lambda: reader.lost == 42)
        eventually(lambda: reader.lines == 12)


@pytest.mark.e2e
def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six seconds with a fault of each kind, at a given rate. Memory takes minutes: `make soak`."""
    monkeypatch.setattr(soak, "FLAGS", (*soak.FLAGS, "--policy", "no_wait"))  # whose control tables take no time
    monkeypatch.setattr(soak, "GRACE_S", 1.5)
    status = soak.EXPERIMENT.main(
        ["--seconds", "6", "--peak", "150", "--budget", "0", "--rehearse", "1", "--out", str(tmp_path)]
    )
    found = experiment.load(tmp_path / "soak.json")
    assert soak.missed(found) == []
    assert status == 0
    assert set(found["faults"]["sent"]) == set(faults.GAPS_S)
    assert found["load"]["requests"] == found["load"]["completed"] > 300
    assert {one["exit"] for one in found["replacements"]} == {0}  # one, or more on a busy machine


# The drill's nginx is configured as the ingress says, and its page tells of every request that failed.


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
