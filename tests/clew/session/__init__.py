"""Tests of the Python client.

Tested in other modules:

`session`: tests/workflows/test_session, tests/workflows/test_control
`session_reads`: tests/workflows/test_reading, tests/workflows/test_read_context
`keywords`: tests/typing/test_session_options
`namespace`: tests/workflows/test_visibility
`encryption`: tests/workflows/test_encryption, tests/workflows/test_checkpoints
`session_blobs`: tests/workflows/test_blobs, tests/workflows/test_uploads
"""
