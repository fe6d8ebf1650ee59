"""The tests of the command line, a file for each module of `clew.cli`.

`test_compare` is of `report`, with a session of its own. `command`, the way in which commands are written, is tested
by `test_control`, `test_failures` and `test_app`.
"""
