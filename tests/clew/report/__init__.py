"""Tests of the report. `test_browser` opens the page in a browser.

Tested in other modules:

`conversation`: test_making
`report_types`: test_making, test_windows
"""
