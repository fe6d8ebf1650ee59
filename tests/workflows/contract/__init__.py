"""Tests of the contract.

Tested in other modules:

`calls`: tests/clew/test_workflow
`hooks`: tests/workflows/test_hooks, tests/workflows/session/test_checks
`lists`: tests/workflows/session/test_lists, tests/clew/session/test_listing
`outputs`: tests/docs/test_schemas, tests/workflows/session/test_views
`validation`: test_inputs, tests/workflows/host/test_ingress
"""
