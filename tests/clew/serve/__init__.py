"""Tests of the service over HTTP.

Tested in other modules:

`agents`: tests/clew/serve/openai/test_request_settings
`answers`: test_sessions
`blob_routes`: test_sessions
`tracing`: test_service_process
"""
