"""Tests of the service over HTTP.

Tested in other modules:

`answers`: test_sessions
`blobs`: test_sessions
`tracing`: test_running
"""
