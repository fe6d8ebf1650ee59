"""Tests of the workflows. The folder above has those of whole sessions.

Tested in other modules:

`agent_session`: tests/workflows/test_session, tests/workflows/test_replay
`answers`: test_waiters, test_signing
`duties`: test_background, tests/workflows/test_external_tools
`effects`: test_recalling, test_tool_calls
`intake`: test_tokenizing, test_rollover
`runtime`: test_local_contexts
`services`: tests/workflows/test_read_context, tests/workflows/test_forking
`subagents`: tests/workflows/test_subagents
`tasks`: test_fullness, test_tokenizing
`telemetry`: tests/workflows/test_tracing, tests/activities/worker/test_observability
`visibility`: tests/workflows/test_visibility, tests/workflows/test_temporal_ui
`webhooks`: tests/workflows/test_webhooks
"""
