"""Each module of the client has a test of its name, but those that any test of a session uses.

`session` and `reading`: tests/workflows/test_control, test_session and test_reading. `options`: tests/typing.
`namespace`: tests/workflows/test_visibility. `_encryption`: tests/workflows/test_encryption and test_checkpoints.
"""
