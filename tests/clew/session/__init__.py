"""Tests of the Python client.

Tested in other modules:

`session`: tests/workflows/test_session, tests/workflows/test_control
`reading`: tests/workflows/test_reading, tests/workflows/test_read_context
`options`: tests/typing/test_session_options
`namespace`: tests/workflows/test_visibility
`blobs`: tests/workflows/test_blobs
`encryption`: tests/workflows/test_encryption, tests/workflows/test_checkpoints
`blobs`: tests/workflows/test_blobs, tests/workflows/test_uploads
"""
