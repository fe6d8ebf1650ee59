"""Tests of contexts. `test_projection_properties` compares `project` with `tests/support/reference.py`.

Tested in other modules:

`lane_view`: test_projection, test_withdrawal
`window`: test_projection, test_epochs
"""
