"""Tests of the service over HTTP.

Tested in other modules:

`agents`: tests/clew/serve/openai/test_request_settings
`answers`: test_sessions
`blob_routes`: test_sessions
`document_examples`: test_document
`tracing`: test_service_process
"""
