"""Tests of the operators' tools. `test_restoring` follows the procedures of `docs/data.md`.

Tested in other modules:

`differences`: test_audit
`evaluation`: tests/clew/testing/test_recorded
`histories`: test_audit, test_recovery
`replay`: test_audit, test_state_builder
"""
