"""Tests of the decisions of a session.

Tested in other modules:

`checkpoints`: tests/activities/test_checkpoints, tests/workflows/test_checkpoints
`drafts`: test_runs, test_tool_rounds, tests/activities/test_offload
`hooks`: test_checks
`outside`: test_external_calls, test_approvals
`requests`: test_request_settings, test_joining, test_fallbacks
`state`: test_carried, test_remembered
`ui`: test_labels, test_details, test_lists, test_markdown
"""
