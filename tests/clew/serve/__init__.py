"""Tests of the service over HTTP.

Tested in other modules:

`agents`: tests/clew/serve/openai/test_request_settings
`answers`: test_sessions
`blobs`: test_sessions
`tracing`: test_running
"""
