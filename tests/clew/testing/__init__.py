"""Tests of `clew.testing`. `test_plugin` is of pytest's fixtures.

Tested in other modules:

`worker`: test_stack
`scripts`: test_stack
`view`: test_stack
"""
