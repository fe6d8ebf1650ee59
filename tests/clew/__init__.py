"""Tests of `clew`. The folders have the names of its packages.

Tested in other modules:

`contract/payloads`: tests/clew/test_exported_members
`contract/content`: tests/clew/test_exported_members, tests/examples/test_web_service
`contract/limits`: tests/docs/test_reference
`context`: tests/clew/test_imports, tests/clew/test_exported_members
`errors`: tests/clew/test_exported_members
`thread`: tests/clew/test_exported_members, tests/docs/test_schemas
`hooks`: tests/workflows/test_hooks
`limited_process`: test_child_process
`operators`: tests/clew/test_worker_extra
`worker`: tests/clew/test_worker_extra, tests/activities/worker/test_process
"""
