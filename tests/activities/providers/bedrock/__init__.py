"""Tests of Amazon Bedrock's Converse.

Tested in other modules:

`models`: test_provider
`stream`: test_provider
"""
