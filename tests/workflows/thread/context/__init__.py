"""Each module has a test of its name, but `lane_view` and `window`, which only `projection` shows.

`test_projection`, `test_epochs` and `test_withdrawal` hold their promises, and `test_projection_properties` compares
`project` with the naive projection of `tests/support/reference.py`.
"""
