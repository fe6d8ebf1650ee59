"""The report of a session: what it did, what it cost and what each model call saw, as values and as one HTML page.

`making` makes the values of `report_types` from a thread, with `conversation` and `windows`. `page_document` puts
them into the page, whose scripts and styles in `page` are the studio's, too, and `page_media` the images and files.
"""

from clew.report.making import MAX_ENTRIES, make_report
from clew.report.report_types import Report

__all__ = ["MAX_ENTRIES", "Report", "make_report"]
