"""The tests of the operators' tools, a file for each module of `clew_audit`.

`test_restoring` follows the procedures of `docs/operations.md`. `evaluation` is tested by `tests/clew/testing`.
"""
