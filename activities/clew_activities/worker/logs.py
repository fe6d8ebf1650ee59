"""Log lines without secrets, as text or as JSON."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, get_args

from clew_activities.providers import Redaction

LogFormat = Literal["text", "json"]


class RedactingFormatter(logging.Formatter):
    """Formats log records without secrets: messages, arguments, exceptions with all their causes, stacks.

    A record's fields (`extra={"fields": {…}}`) follow the message as `name=value`. With `hides_texts`, exceptions are
    formatted without their messages, which may hold texts of conversations.
    """

    def __init__(self, redaction: Redaction, *, hides_texts: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._redaction = redaction
        self._hides_texts = hides_texts

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format the line itself, without an exception."""
        fields = _get_fields(record)
        return " ".join([super().formatMessage(record), *(f"{name}={value}" for name, value in fields.items())])

    def format(self, record: logging.LogRecord) -> str:
        """Format the record and redact the text."""
        # Another handler may have kept its own text of the exception here.
        record.exc_text = None
        return self._redaction.redact_text(super().format(record))

    def formatException(  # noqa: N802
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """Format an exception with its causes."""
        if not self._hides_texts or ei[1] is None:
            return super().formatException(ei)
        parts: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None:
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            parts.append("".join(traceback.format_tb(error.__traceback__)) + f"{name}: (the message is not logged)")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\ncaused:\n".join(reversed(parts))


class JsonFormatter(RedactingFormatter):
    """Formats each record as one line with a JSON object, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record: time, level, logger and message, its fields, and the exception if there is one."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_get_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(self._redaction.redact_value(line), ensure_ascii=False, default=str)


def read_log_format(environ: Mapping[str, str]) -> LogFormat:
    """Read `CLEW_LOG_FORMAT`: `text` or `json`; `text` if it is not set.

    Raises:
        ValueError: It has another value.
    """
    value = environ.get("CLEW_LOG_FORMAT") or "text"
    for known in get_args(LogFormat):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"CLEW_LOG_FORMAT must be text or json, not {value[:50]!r}")


def log_without_secrets(redaction: Redaction, log_format: LogFormat = "text", *, hides_texts: bool = False) -> None:
    """Log to standard error, through a formatter that redacts."""
    handler = logging.StreamHandler()
    formatter = JsonFormatter if log_format == "json" else RedactingFormatter
    handler.setFormatter(formatter(redaction, hides_texts=hides_texts))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _get_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}
