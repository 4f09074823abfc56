"""What the person who starts a server reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_http.catalog import FakeCatalog, FakeServed, served, spec

from app.cli.banner import announce, starting
from app.contract import IndexEntry, SampleRow
from app.observe.logs import JsonFormatter
from app.settings import Settings

DEVICE = "cpu, 1 worker x 2 threads"


def model(name: str, *shape: int) -> FakeServed:
    vector = spec("x", "FP32", *shape)
    return replace(served(name, (vector,), (vector,)), example=SampleRow((np.ones(shape, np.float32),)))


def models(*ready: FakeServed, others: Sequence[IndexEntry] = ()) -> Any:
    return FakeCatalog({one.info.name: {"1": one} for one in ready}, [*others])


@pytest.mark.parametrize(
    ("settings", "ready", "line"),
    [
        (Settings(), [model("a", 8, 8), model("b")], "curl http://127.0.0.1:8000/predict/b -d 1.0"),
        (Settings(), [model("a", 100)], "curl http://127.0.0.1:8000/v2/models/a"),
        (
            Settings(api_key="sesame", pages=False), [model("a", 2)],
            'curl -H "X-API-Key: $STARLING_API_KEY" http://127.0.0.1:8000/predict/a -d \'[1.0, 1.0]\'',
        ),
    ],
)  # fmt: skip
def test_the_request_to_try_is_short_and_names_no_key(
    capsys: pytest.CaptureFixture[str], settings: Settings, ready: list[FakeServed], line: str
) -> None:
    announce(settings, 8000, models(*ready), DEVICE, None)
    printed, told = capsys.readouterr()
    assert printed == ""
    assert f"try     {line}" in told.splitlines()
    assert "sesame" not in told
    assert ("/docs" in told) == settings.pages


def test_what_was_set_is_told_at_once_and_keys_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    starting(Settings(host="[::1]", api_key="sesame", admin_key="open", max_queue=7, tls_cert=Path("a.pem")), 9000)
    text = capsys.readouterr().err
    for told in ("listening on https://[::1]:9000 when ready", "max_queue = 7", "api_key = (set)", "admin_key = (set)"):
        assert told in text
    assert "sesame" not in text
    assert "open" not in text


def test_entries_of_the_log(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Where the log is JSON nothing is printed, and every line can be parsed."""
    settings = Settings(log_format="json", api_key="sesame", workers=(1, 2), profile_dir=Path("profiles"))
    with caplog.at_level("INFO"):
        starting(settings, 9000)
        failed = IndexEntry("b", "1", "UNAVAILABLE", "model.toml: no inputs", required=True)
        announce(settings, 9000, models(model("a", 4), others=[failed]), DEVICE, "b: failed")
    assert capsys.readouterr() == ("", "")
    begins, serves, broken, ready = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert begins["settings"] == {
        "api_key": "(set)", "workers": [1, 2], "profile_dir": "profiles", "log_format": "json",
    }  # fmt: skip
    assert (serves["model"], serves["version"], broken["model"], broken["level"]) == ("a", "1", "b", "warning")
    assert (ready["url"], ready["serving"], ready["models"]) == ("http://127.0.0.1:9000", 1, 2)
