"""Tests of the providers. These concern all of them:

`test_echoes` (no secret is repeated), `test_hostile` (no stream takes all of the worker), `test_llama` (a real
server), `test_providers`. tests/providers plays sessions against strict servers of each dialect.

Tested in other modules:

`anthropic_stream`: test_anthropic, test_hostile
`dialects`: test_openai, test_fit_tools, tests/providers/test_matrix
`interface`: test_loading, test_http
`openai_stream`: test_openai, test_hostile
`reply`: test_hostile, test_echoes, test_answer_object
"""
