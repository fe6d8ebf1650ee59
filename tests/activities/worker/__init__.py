"""Tests of the worker.

Tested in other modules:

`parts`: test_assembly, test_plugin
"""
