"""Log lines of commands as JSON, so Cloud Logging reads their severity."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object per record. https://cloud.google.com/logging/docs/structured-logging"""

    def format(self, record: logging.LogRecord) -> str:
        """Severity, message, time and logger. A traceback is part of the message."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"severity": record.levelname, "message": message, "time": at, "logger": record.name}
        return json.dumps(line, ensure_ascii=False)


def log_json_lines() -> None:
    """Write this process's log records of INFO and above to stderr, as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
