"""What the person who starts a server reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from app.cli.banner import announce, starting
from app.contract import IndexEntry, ModelInfo, SampleRow, TensorSpec
from app.observe.logs import JsonFormatter
from app.settings import Settings

DEVICE = "cpu, 1 worker x 2 threads"


@dataclass
class Served:
    """A model that serves, as far as the banner looks."""

    info: ModelInfo
    example: SampleRow | None


class Models:
    """The part of a catalog that the banner asks."""

    def __init__(self, ready: Sequence[Served], others: Sequence[IndexEntry]) -> None:
        self._ready, self._others = ready, others

    def ready(self) -> Sequence[Served]:
        return self._ready

    def index(self) -> Sequence[IndexEntry]:
        return self._others


def model(name: str, version: str = "1", shape: tuple[int, ...] = (4,)) -> Served:
    vector = TensorSpec("x", "FP32", shape, ("",) * len(shape), shape)
    row = SampleRow((np.ones(shape, np.float32),))
    return Served(ModelInfo(name, version, "pytorch", (vector,), (vector,)), row)


def failed(name: str, version: str = "1") -> IndexEntry:
    return IndexEntry(name, version, "UNAVAILABLE", "model.toml: no inputs", required=True)


def told(capsys: pytest.CaptureFixture[str], ready: Sequence[Served], broken: Sequence[IndexEntry]) -> list[str]:
    announce(Settings(), 8000, Models(ready, broken), DEVICE, "c: failed" if broken else None)  # type: ignore[arg-type]
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("models", "line"),
    [
        ([model("a", shape=(8, 8)), model("b", shape=())], "curl {}/predict/b -d 1.0"),
        ([model("a", shape=(100,))], "curl {}/v2/models/a"),
    ],
)  # fmt: skip
def test_the_request_to_try_is_short(capsys: pytest.CaptureFixture[str], models: list[Served], line: str) -> None:
    assert f"try     {line.format('http://127.0.0.1:8000')}" in told(capsys, models, [])


def test_with_a_key_the_request_to_try_carries_it(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Settings(api_key="sesame", pages=False), 8000, Models([model("a")], []), DEVICE, None)  # type: ignore[arg-type]
    text = capsys.readouterr().err
    assert 'try     curl -H "X-API-Key: $STARLING_API_KEY" http://127.0.0.1:8000/predict/a -d' in text
    assert "sesame" not in text
    assert "/docs" not in text


def test_what_was_set_is_told_at_once_and_keys_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    starting(Settings(host="::1", api_key="sesame", admin_key="open", max_queue=7, tls_cert=Path("a.pem")), 9000)
    text = capsys.readouterr().err
    assert "listening on https://[::1]:9000 when ready" in text
    assert "max_queue = 7" in text
    assert "api_key = (set)" in text
    assert "admin_key = (set)" in text
    assert "sesame" not in text
    assert "open" not in text


def test_entries_of_the_log(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Where the log is JSON nothing is printed, and every line can be parsed."""
    settings = Settings(log_format="json", api_key="sesame", workers=(1, 2), profile_dir=Path("profiles"))
    with caplog.at_level("INFO"):
        starting(settings, 9000)
        announce(settings, 9000, Models([model("a")], [failed("b")]), DEVICE, "b: failed")  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
    begins, serves, broken, ready = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert begins["settings"] == {
        "api_key": "(set)", "workers": [1, 2], "profile_dir": "profiles", "log_format": "json",
    }  # fmt: skip
    assert (serves["model"], serves["version"], broken["model"], broken["level"]) == ("a", "1", "b", "warning")
    assert (ready["url"], ready["serving"], ready["models"]) == ("http://127.0.0.1:9000", 1, 2)
