"""Tests of the workflows. The folder above has those of whole sessions.

Tested in other modules:

`agent_session`: tests/workflows/test_session, tests/workflows/test_replay
`answers`: test_waiters, test_signing
`intake`: test_tokenizing, test_rollover
`reconciler`: test_tool_calls, test_background, tests/workflows/test_subagents, tests/workflows/test_webhooks
`row`: tests/workflows/test_visibility
`runtime`: test_local_contexts, test_fullness
`services`: tests/workflows/test_read_context, tests/workflows/test_forking
`telemetry`: tests/workflows/test_tracing, tests/activities/worker/test_observability
"""
