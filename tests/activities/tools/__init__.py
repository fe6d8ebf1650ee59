"""Tests of tools on a worker.

Tested in other modules:

`run_hooks`: tests/workflows/test_hooks
"""
