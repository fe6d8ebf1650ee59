"""The report of a session: what it did, what it cost and what each model call saw, as values and as one HTML page.

`making` makes the values of `types` from a thread, with `conversation` and `windows`. `rendering` makes the page of
them, with `pictures` and `texts`; it needs the extra `cli`.
"""

from clew.report.making import MAX_ENTRIES, make_report
from clew.report.types import Report

__all__ = ["MAX_ENTRIES", "Report", "make_report"]
