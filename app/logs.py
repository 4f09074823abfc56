"""Log lines: text for people, JSON for collectors."""

from __future__ import annotations

import json
import logging
import logging.config
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
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
