"""Every knob: its default is within its own range, and what is wrong names the knob."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.machine import cpu_cores, memory_limit
from app.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1), ("port", 65536), ("max_batch", 0), ("max_batch", 5000), ("max_delay_ms", -1),
        ("max_queue", 0), ("threads", 0), ("threads", 10_000), ("workers", "0"), ("workers", "1,a"),
        ("max_body_mib", 0), ("max_json_mib", -1), ("max_inflight_mib", 0), ("body_timeout_s", 0),
        ("keep_alive_s", 0), ("drain_grace_s", -1), ("drain_limit_s", -1), ("hang_floor_s", 0),
        ("log_level", "loud"), ("log_format", "xml"), ("device", "tpu"), ("pool_mib", 0),
        ("profile_budget_s", -1), ("drain_grace_s", float("inf")), ("max_queue", 10**20),
        ("root_path", "models"), ("root_path", "/a b"), ("root_path", "/a//b"),
        ("root_path", "/v2"), ("root_path", "/predict/x"), ("root_path", "//a"), ("cors_origins", "app.example.com"),
        ("cors_origins", "https://app.example.com/"), ("cors_origins", ("*", "https://a.example/x")),
    ],
)  # fmt: skip
def test_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**{name: value})
    assert name in str(caught.value)


def test_levels_are_written_in_any_case() -> None:
    """As logging itself writes them."""
    given = Settings(log_level="INFO", log_format="JSON")  # type: ignore[arg-type]
    assert (given.log_level, given.log_format) == ("info", "json")


def test_unknown_and_frozen() -> None:
    with pytest.raises(ValidationError, match="max_bodies"):
        Settings(max_bodies=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "loads_later"),
    [({}, False), ({"watch": True}, True), ({"model_control": True}, True), ({"admin_key": "open"}, True)],
)
def test_models_can_be_loaded_later(given: dict[str, Any], loads_later: bool) -> None:
    assert Settings(**given).loads_later is loads_later


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("*", ("*",)),
        ("https://A.example, http://localhost:3000", ("https://a.example", "http://localhost:3000")),
        (["https://a.example", "chrome-extension://abc null"], ("https://a.example", "chrome-extension://abc", "null")),
        ((), ()),
    ],
)
def test_cors_origins(given: Any, expected: tuple[str, ...]) -> None:
    assert Settings(cors_origins=given).cors_origins == expected


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(ValidationError, match="tls_cert: expected a certificate"):
        Settings(tls_key="a.key")
    assert str(Settings(tls_cert="a.pem").tls_cert) == "a.pem"


def test_the_memory_limit_is_the_smallest_on_the_path(tmp_path: Path) -> None:
    root, own, inner = tmp_path / "cgroup", tmp_path / "own", tmp_path / "cgroup" / "pod" / "container"
    inner.mkdir(parents=True)
    assert memory_limit(root, own) is None
    own.write_text("1:name=systemd:/x\n0::/pod/container\n")
    assert memory_limit(root, own) is None
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("700000\n")
    assert memory_limit(root, own) == 700_000
    (root / "memory.max").write_text("600000\n")
    assert memory_limit(root, own) == 600_000
    own.write_text("0::/\n")
    assert memory_limit(root, own) == 600_000


def test_cores_are_those_that_every_container_around_pays_for(tmp_path: Path) -> None:
    root, own, pod = tmp_path / "cgroup", tmp_path / "own", tmp_path / "cgroup" / "pod"
    (pod / "container").mkdir(parents=True)
    own.write_text("0::/pod/container\n")
    allowed = cpu_cores(root, own)
    (pod / "container" / "cpu.max").write_text("max 100000\n")
    assert cpu_cores(root, own) == allowed
    (pod / "cpu.max").write_text("150000 100000\n")
    (root / "cpu.max").write_text("99900000 100000\n")
    assert cpu_cores(root, own) == 1
    (pod / "cpu.max").write_text("50000 100000\n")
    assert cpu_cores(root, own) == 1
