"""Tests of the providers. Each API has a folder; these concern all of them:

`test_call_identity` (a call has its own arguments), `test_echoes` (no secret is repeated), `test_hostile` (no stream
takes all of the worker), `test_llama` (a real server), `test_providers`. tests/providers plays sessions
against strict servers of each dialect.

Tested in other modules:

`aws`: tests/activities/providers/bedrock/test_provider, tests/providers/test_strict_servers
`dialects`: tests/activities/providers/openai/test_chat, test_fit_tools, tests/providers/test_matrix
`interface`: test_loading, test_http
`reply`: test_hostile, test_echoes, test_answer_object
`endpoint`: tests/activities/providers/openai/test_chat, test_providers
"""
