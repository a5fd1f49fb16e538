"""Logs on standard error: lines for people, or JSON lines for collectors.

JSON lines also hold what a record has as ``ids``: those that events and spans carry.
"""

from __future__ import annotations

import json
import logging
import sys


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in getattr(record, "ids", {}).items() if value},
        }
        if record.exc_info:
            values["error"] = self.formatException(record.exc_info)
        return json.dumps(values)


def set_up_logs(*, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
