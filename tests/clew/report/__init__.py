"""The tests of the report, a file for each of its modules; `test_browser` opens the page in a browser."""
