"""One line per event, as text or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from app.logs import JsonFormatter, configure


@pytest.fixture
def _restored() -> Iterator[None]:
    """Logging is the process's: put it back."""
    names = [None, "starling", "uvicorn", "uvicorn.access", "python_multipart"]
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    handlers = list(logging.getLogger().handlers)
    yield
    for logger, level in before:
        logger.setLevel(level)
    logging.getLogger().handlers[:] = handlers


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("starling.x", logging.WARNING, "file", 1, message, args, None)


def test_a_json_line() -> None:
    line = JsonFormatter().format(record("%s is\n%d", "grün", 5))
    assert "\n" not in line
    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "message"]
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "starling.x", "grün is\n5")
    assert datetime.fromisoformat(entry["time"]).tzinfo is not None


def test_a_traceback_in_a_json_line() -> None:
    failed = record("no")
    try:
        raise ValueError("why")
    except ValueError as exc:
        failed.exc_info = (ValueError, exc, exc.__traceback__)
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    assert "ValueError: why" in json.loads(line)["traceback"]


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("style", ["text", "json"])
def test_levels(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", style, False)
    logging.getLogger("starling.engine").debug("too fine")
    logging.getLogger("starling.engine").info("just right")
    logging.getLogger("somebody").info("else's")
    logging.getLogger("uvicorn.access").info("GET /")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "just right" in lines[0]
    assert (json.loads(lines[0])["message"] == "just right") if style == "json" else "INFO starling.engine" in lines[0]


@pytest.mark.usefixtures("_restored")
def test_the_access_log_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    configure("warning", "text", True)
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("starling").info("quiet")
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["GET /"]
