"""Each module of the contract has a test of its name, but those whose promises others hold.

`outputs`: tests/docs/test_schemas. `lists`: tests/workflows/test_visibility and tests/clew/session/test_listing.
`hooks`: tests/workflows/test_hooks. `calls`: tests/clew/test_workflow. `validation`: `host/test_ingress`.
"""
