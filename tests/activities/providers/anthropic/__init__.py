"""Tests of Anthropic's Messages.

Tested in other modules:

`messages`: test_provider, tests/providers/test_matrix
`models`: test_provider, tests/activities/providers/bedrock/test_provider
`stream`: test_provider, tests/activities/providers/test_hostile
`tools`: test_provider, tests/providers/test_matrix
"""
