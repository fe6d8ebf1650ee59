"""Tests of model calls.

Tested in other modules:

`summarize`: tests/contract/test_summaries, tests/workflows/session/test_summaries
`validation_process`: test_structured_output
"""
