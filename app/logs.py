"""Log lines: text for people, JSON for collectors; and errors of models' own code, each cause once."""

from __future__ import annotations

import json
import logging
import logging.config
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

_SERVER = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Models that ship with the server. Their code counts as a user's.
_SHIPPED_MODELS = tuple(os.path.join(_SERVER, "models", name, "") for name in ("demo", "zoo"))
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages, which may lie inside _STDLIB


#: The class of the inference request that this task answers, for its line in the access log; "" for other requests.
SERVICE_CLASS: ContextVar[str] = ContextVar("service_class", default="")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the traceback where there is one.

    Lines of the access log have the `class` of inference requests.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.name == "uvicorn.access" and (klass := SERVICE_CLASS.get()):
            entry["class"] = klass
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, style: str, access: bool) -> None:
    """Set up logging for the process. `style` is "text" or "json"; `access`: one line per HTTP request."""
    formatter = (
        {"()": JsonFormatter} if style == "json" else {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": formatter},
            "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "line"}},
            "root": {"handlers": ["out"], "level": "WARNING"},
            "loggers": {
                "starling": {"level": level.upper()},
                "python_multipart": {"level": "ERROR"},  # warns of every malformed upload: a client could fill the disk
                "uvicorn": {"level": "INFO" if access else "WARNING"},
                "uvicorn.access": {"level": "INFO" if access else "WARNING"},
            },
        }
    )


class CauseLog:
    """Logs what models' own code raises while requests run: each cause once, as a warning.

    A cause is the exception's type, the line that raised it and the model. So a model that fails on every request does
    not fill the disk, and the first failure of each kind is logged with its traceback. Not thread-safe.
    """

    def __init__(self, logger: logging.Logger, most: int = 256) -> None:
        self._logger = logger
        self._most = most  # causes remembered; then the oldest is forgotten, and would be logged again
        self._seen: dict[tuple[str, str, str, int], None] = {}

    def log(self, exc: BaseException, model: str, request_id: str) -> None:
        """Log `exc` unless its cause is known. The traceback begins with the first frame of the user's own code."""
        links = list(_links(exc.__traceback__))
        users = [link for link in links if _is_users(link.tb_frame.f_code.co_filename)]
        # The last line of the user's code, because one line inside torch may raise for many reasons.
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
            model, request_id, type(exc).__name__, exc,
            exc_info=(type(exc), exc, users[0]) if users else None,
        )  # fmt: skip


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    """The traceback of each frame, outermost first."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_users(filename: str) -> bool:
    """Whether a frame's file is neither the server's, nor torch's, nor the standard library's."""
    if filename.startswith(_SHIPPED_MODELS):
        return True
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if filename.startswith(("<frozen ", _SERVER)) or (torch and filename.startswith(os.path.dirname(torch) + os.sep)):
        return False
    return not filename.startswith(_STDLIB) or not _INSTALLED.isdisjoint(filename.split(os.sep))
