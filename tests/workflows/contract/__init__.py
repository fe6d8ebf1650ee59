"""Tests of the contract.

Tested in other modules:

`calls`: tests/clew/test_workflow
`hooks`: tests/workflows/test_hooks, tests/workflows/session/test_hooks
`limits`: tests/docs/test_reference, tests/docs/test_contract_page
`lists`: tests/workflows/session/test_ui, tests/clew/session/test_session_lists
`outputs`: tests/docs/test_schemas, tests/workflows/session/test_views
`validation`: test_inputs, tests/workflows/host/test_ingress
"""
