"""Tests of the activities. The folders have the names of their packages.

Tested in other modules:

`callers`: tests/clew/test_workflow
`http_server`: tests/activities/worker/test_health, tests/audit/test_codec_server
`inspection_process`: test_inspection, tests/workflows/test_media_takeover
`live_writer`: tests/clew/session/live/test_live
`received_media`: tests/activities/tools/test_result_parts, tests/activities/providers/test_drawn
`user_modules`: tests/activities/tools/test_registry, tests/activities/worker/test_process
"""
