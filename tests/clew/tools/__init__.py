"""Tests of tools.

Tested in other modules:

`definition`: test_function, test_remote
"""
