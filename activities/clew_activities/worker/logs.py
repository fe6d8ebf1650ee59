"""Log lines without secrets."""

from __future__ import annotations

import logging

from clew_activities.providers import Redaction


class RedactingFormatter(logging.Formatter):
    """Formats log records without secrets: messages, arguments, exceptions with all their causes, stacks."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """Format the record and redact the text."""
        return self._redaction.redact_text(super().format(record))


def log_without_secrets(redaction: Redaction) -> None:
    """Log to standard error, through a `RedactingFormatter`."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redaction))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
