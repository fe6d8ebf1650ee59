"""Tests of Gemini's own API.

Tested in other modules:

`messages`: test_provider, tests/providers/test_matrix
`models`: test_provider
`schema`: test_provider
`stream`: test_provider, tests/activities/providers/test_hostile
"""
