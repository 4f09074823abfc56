"""One line per event, as text or as JSON; models' own errors, each cause once; and the last errors of all."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from opentelemetry.trace import TraceState

from app.observe.logs import CauseLog, JsonFormatter, LastErrors, TextFormatter, configure, fields


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    return logging.LogRecord(
        "starling.x", logging.WARNING, "file", 1, message, args, error and (type(error), error, None)
    )


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_traceback_has_no_addresses_of_objects(formatter: logging.Formatter) -> None:
    failed = record("cannot identify %r", io.BytesIO(), error=ValueError(repr(object())))
    line = formatter.format(failed)
    assert (line.count("\n") == 0) is isinstance(formatter, JsonFormatter)
    assert "<_io.BytesIO object>" in line
    assert "ValueError: <object object>" in line


def test_a_message_writes_no_other_line() -> None:
    """What a client sends may come back in an exception's message."""
    forged = "why\n2026-01-01 00:00:00,000 INFO starling: all is well\x1b[2J"
    first, *others = TextFormatter().format(record("failed: %s", forged, error=ValueError(forged))).splitlines()
    assert first.endswith(r"failed: why\n2026-01-01 00:00:00,000 INFO starling: all is well\x1b[2J")
    assert len(others) >= 2
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert len(TextFormatter().format(record("failed: %s", "x" * 10_000))) < 2100
    long = "x" * 1_000_000
    told = json.loads(JsonFormatter().format(record("failed: %s", long, error=ValueError(long))))
    assert told["message"].startswith("failed: xxx")
    assert "ValueError: xxx" in told["traceback"]
    assert len(told["message"]) == len(told["traceback"]) == 1 << 15


@pytest.mark.usefixtures("restored_logging")
def test_what_a_client_sends_writes_no_lines_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    configure("debug", "json", False)
    TraceState.from_header(["a=\x85"])
    assert not capsys.readouterr().err


def test_a_line_of_the_access_log_as_text() -> None:
    """One line and one word for each field, whatever a client calls its model."""
    told = record("%s %s %d", "POST", "/x", 200)
    told.name = "starling.access"
    told.__dict__ |= fields(method="POST", path="/x", status=200, rows=3, model="a b\nc=1")["extra"]
    assert TextFormatter().format(told).endswith("starling.access: POST /x 200 rows=3 model='a b\\nc=1'")


log = logging.getLogger("starling.test")


class Picky(torch.nn.Module):
    """A user's model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise ValueError(f"got {x.sum().item():g}")
        return torch.nn.functional.linear(x, torch.ones(2, 2))


def raised(function: Callable[..., Any], *args: Any) -> BaseException:
    """What a call on a worker's thread raises: its traceback begins in the standard library."""
    with ThreadPoolExecutor(1) as pool:
        exc = pool.submit(function, *args).exception()
    assert exc is not None
    return exc


def test_the_traceback_begins_in_the_users_code(caplog: pytest.LogCaptureFixture) -> None:
    exc = raised(Picky(), torch.full((1,), -2.0))
    assert exc.__traceback__ is not None
    assert exc.__traceback__.tb_frame.f_code.co_filename != __file__
    CauseLog(log).log(exc, "picky version 1", "r-7")
    (line,) = caplog.records
    assert (line.levelname, line.name) == ("WARNING", "starling.test")
    assert "model picky version 1, request r-7: ValueError: got -2" in line.getMessage()
    text = JsonFormatter().format(line)
    frames = [part for part in json.loads(text)["traceback"].splitlines() if part.startswith("  File")]
    assert [__file__ in frame and "in forward" in frame for frame in frames] == [True]


def test_each_cause_once_of_those_that_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    causes = CauseLog(log)
    for value in (-1.0, -2.0):  # one line, two messages
        causes.log(raised(Picky(), torch.full((1,), value)), "m", "r")
    assert len(caplog.records) == 1
    causes.log(raised(Picky(), torch.full((1,), -1.0)), "another model", "r")
    causes.log(raised(Picky(), torch.ones(3)), "m", "r")  # another line
    causes.log(KeyError("never raised"), "m", "r")
    causes.log(KeyError("never raised either"), "m", "r")
    assert len(caplog.records) == 4
    caplog.clear()
    causes = CauseLog(log, most=3)
    for model in ("a", "b", "c", "c", "a", "d", "b", "a"):
        causes.log(KeyError(), model, "r")
    assert [line.getMessage().split(",")[0][-1] for line in caplog.records] == ["a", "b", "c", "d", "a"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_line_of_json_whatever_a_path_is_made_of(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of another encoding would escape letters as Python does, which JSON does not know."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace", write_through=True)
    monkeypatch.setattr("sys.stderr", stream)
    record = logging.makeLogRecord({"msg": "größe/\udcff: ignored", "fields": {"path": "\udcff"}})
    stream.write(JsonFormatter().format(record))
    line = json.loads(stream.buffer.getvalue())
    assert line["message"] == "größe/\ufffd: ignored"


def test_equal_last_errors_are_counted_and_the_newest_are_kept() -> None:
    """There are few entries, and none is long."""
    errors = LastErrors()
    for number in range(100):
        errors.add("echo", "queue_full", "the queue is full")
        errors.add("echo", "bad_request", f"{number}: {'x' * 10_000}")
    kept = errors.since(0)
    assert [(one["code"], one["count"]) for one in kept] == [
        *[("bad_request", 1)] * 18, ("queue_full", 100), ("bad_request", 1),
    ]  # fmt: skip
    assert kept[-1]["message"] == "99: " + "x" * 196
    assert [one["code"] for one in errors.since(errors.total - 1)] == ["bad_request"]
    assert errors.since(errors.total) == []
