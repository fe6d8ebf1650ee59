"""Tests of the providers. These concern all of them:

`test_echoes` (no secret is repeated), `test_hostile` (no stream takes all of the worker), `test_llama` (a real
server), `test_providers`. tests/providers plays sessions against strict servers of each dialect.

Tested in other modules:

`anthropic_messages`: test_anthropic, tests/providers/test_matrix
`anthropic_models`: test_anthropic, test_bedrock
`anthropic_stream`: test_anthropic, test_hostile
`anthropic_tools`: test_anthropic, tests/providers/test_matrix
`aws`: test_bedrock, tests/providers/test_strict_servers
`bedrock_models`: test_bedrock
`bedrock_stream`: test_bedrock
`dialects`: test_openai, test_fit_tools, tests/providers/test_matrix
`google_schema`: test_google
`google_stream`: test_google, test_hostile
`interface`: test_loading, test_http
`openai_media`: test_media, tests/clew/testing/test_stack
`openai_schema`: test_openai, test_responses
`openai_stream`: test_openai, test_hostile
`reply`: test_hostile, test_echoes, test_answer_object
`responses_stream`: test_responses
`tagged_text`: test_openai, tests/providers/test_matrix
"""
