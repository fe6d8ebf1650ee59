"""Tests of the report. `test_browser` opens the page in a browser.

Tested in other modules:

`conversation`: test_making, test_rendering
`pictures`: test_rendering
`texts`: test_rendering
`types`: test_making, test_windows
"""
