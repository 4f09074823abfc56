"""Log lines as text or JSON; a log of the errors in models' own code; and the last errors, for the live page."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

from app.errors import presentable, text_of
from app.user_code import links_of, own_links

_log = logging.getLogger("starling.logs")

ACCESS = "starling.access"  # the logger of one line per HTTP request
_LONGEST_MESSAGE = 2000  # characters of a message as text
_LONGEST_FIELD = 1 << 15  # characters of a message or traceback in JSON: longer lines are lost by what ships logs
_LAST_ERRORS, _LONGEST_TOLD = 20, 200  # on the live page; characters of a message or name, which may quote a client


def fields(**values: object) -> dict[str, Any]:
    """Arguments for a log call that add fields to its JSON line: `log.info("...", **fields(model=m))`.

    Values must be JSON types.
    """
    return {"extra": {"fields": values}}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, `fields`, and the traceback where there is one."""

    def __init__(self) -> None:
        super().__init__()
        # elsewhere the stream would escape letters in ways that JSON does not know
        self._ascii = "utf" not in str(getattr(sys.stderr, "encoding", "utf-8")).lower()

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": presentable(record.getMessage())[:_LONGEST_FIELD],
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["traceback"] = presentable(self.formatException(record.exc_info))[:_LONGEST_FIELD]
        return presentable(json.dumps(entry, ensure_ascii=self._ascii))


class TextFormatter(logging.Formatter):
    """Lines of text. Lines of the access log also show the fields that are not in the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Escape line breaks, which a client may have sent, unless the record has `lines=True`: the server's own."""
        if not getattr(record, "lines", False):
            record.message = _escaped(presentable(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Indented and escaped, because an exception's message may look like log entries, or clear a terminal."""
        lines = presentable(super().formatException(ei)).expandtabs().splitlines()
        return "\n".join(f"  {_escaped(line)}" for line in lines)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if record.name != ACCESS:
            return line
        given = getattr(record, "fields", {}).items()
        rest = [(name, value) for name, value in given if name not in ("method", "path", "status")]
        return line + "".join(f" {name}={_one_word(value)}" for name, value in rest)


def _escaped(text: str) -> str:
    """Text as one printable line of at most 2,000 characters."""
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "..."
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _one_word(value: object) -> str:
    """A value as text without spaces or line breaks, else quoted: clients may send any model name."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


def _log_uncaught(given: Any) -> None:
    """Log an exception that ended a thread or was raised by a finalizer; Python would print its traceback."""
    kind, error, trace, *_, place = given
    if kind is not SystemExit:
        _log.error("%s in %r, where nobody catches it", kind.__name__, place, exc_info=(kind, error, trace))


def configure(level: str, style: str, access: bool) -> None:
    """Set up logging for the process. `style` is "text" or "json"; `access`: one line per HTTP request."""
    logging.captureWarnings(True)
    threading.excepthook = sys.unraisablehook = _log_uncaught
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level="WARNING", handlers=[handler], force=True)
    levels = {
        "starling": level.upper(),
        "python_multipart": "ERROR",  # it warns of every malformed upload, which could fill the disk
        "opentelemetry.trace": "ERROR",  # it warns of every malformed `tracestate`
        "uvicorn": "WARNING",
        ACCESS: "INFO" if access else "WARNING",
    }
    for name, least in levels.items():
        logging.getLogger(name).setLevel(least)


class CauseLog:
    """Logs exceptions of models' own code: each cause once, as a warning with its traceback. Not thread-safe.

    A cause is the exception's type, the line that raised it and the model. So a model that fails on every request does
    not fill the disk.
    """

    def __init__(self, logger: logging.Logger, most: int = 256) -> None:
        self._logger = logger
        self._most = most  # causes remembered; beyond that the oldest is forgotten and may be logged again
        self._seen: dict[tuple[str, str, str, int], None] = {}

    def log(self, exc: BaseException, model: str, request_id: str) -> None:
        """Log `exc` unless its cause is known. The traceback begins at the first frame of the owner's code."""
        links, users = list(links_of(exc)), own_links(exc)
        # The last line of the owner's code, because one line inside torch may raise for many reasons.
        raised = users[-1] if users else links[-1] if links else None
        file, line = (raised.tb_frame.f_code.co_filename, raised.tb_lineno) if raised else ("", 0)
        cause = (model, type(exc).__qualname__, file, line)
        if cause in self._seen:
            return
        if len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        self._seen[cause] = None
        self._logger.warning(
            "model %s, request %s: %s: %s (the same cause is not logged again)",
            model, request_id, type(exc).__name__, text_of(exc),
            exc_info=(type(exc), exc, users[0]) if users else None, **fields(request_id=request_id),
        )  # fmt: skip


class LastErrors:
    """The last 20 distinct errors of answers, equal ones with their count. `total`: how many there have been."""

    def __init__(self) -> None:
        self.total = 0
        # (model, code, message) -> count, seconds since the epoch and `total` at the last of them; the newest is last.
        self._entries: dict[tuple[str, str, str], tuple[int, float, int]] = {}

    def add(self, model: str, code: str, message: str) -> None:
        key = model[:_LONGEST_TOLD], code, message[:_LONGEST_TOLD]
        count, _, _ = self._entries.pop(key, (0, 0.0, 0))
        self.total += 1
        self._entries[key] = count + 1, time.time(), self.total
        if len(self._entries) > _LAST_ERRORS:
            del self._entries[next(iter(self._entries))]

    def since(self, total: int) -> list[dict[str, Any]]:
        """Entries with an error after the first `total` ones, oldest first."""
        return [
            {"model": model, "code": code, "message": message, "count": count, "at": at}
            for (model, code, message), (count, at, number) in self._entries.items()
            if number > total
        ]
