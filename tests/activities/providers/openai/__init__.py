"""Tests of Chat Completions and Responses.

Tested in other modules:

`chat_stream`: test_chat, tests/activities/providers/test_hostile
`families`: test_chat, tests/providers/test_matrix
`models`: test_chat, test_responses
`provider`: tests/activities/providers/test_providers
`responses_stream`: test_responses
`schema`: test_chat, test_responses
`server`: tests/activities/providers/test_providers, tests/activities/providers/test_echoes
`tagged_text`: test_chat, tests/providers/test_matrix
"""
