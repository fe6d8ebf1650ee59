"""Tests of Chat Completions and Responses.

Tested in other modules:

`chat_stream`: test_chat, test_pages, tests/activities/providers/test_hostile
`models`: test_chat, test_responses, tests/providers/test_matrix
`provider`: tests/activities/providers/test_providers
`responses_stream`: test_responses
`schema`: test_chat, test_responses
"""
