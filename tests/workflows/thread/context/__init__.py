"""Tests of contexts. `test_projection_properties` compares `project` with `tests/support/reference.py`."""
