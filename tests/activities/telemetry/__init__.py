"""Tests of what operators see of activities.

Tested in other modules:

`interceptor`: tests/activities/worker/test_observability, tests/workflows/test_tracing
`spans`: tests/workflows/test_tracing
"""
