"""Tests of the workarounds. `test_still_needed` fails when the fault of one is gone, and finds each module.

Tested in other modules:

`cancelled_calls`: tests/clew/session/test_transport, tests/clew/session/test_request
`failure_details`: tests/workflows/test_remote_tools
`refused_updates`: tests/clew/session/test_request
`replayed_state`: tests/audit/test_state_builder
`slow_timers`: tests/workflows/host/test_tokenizing
`started_workflows`: tests/workflows/test_session, tests/workflows/test_agents
`storage_references`: tests/workflows/test_remote_tools, tests/contract/test_hostile_input
`stuck_workflows`: tests/activities/worker/test_process
`updates_in_flight`: tests/clew/session/test_transport
`wrapped_converter`: tests/workflows/test_encryption
"""
