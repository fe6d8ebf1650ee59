"""Tests of the archive.

Tested in other modules:

`blob_store`: tests/workflows/test_blobs
`archive_errors`: test_store
`fork_session`: tests/workflows/test_forking
`archived_sessions`: tests/clew/session/test_session_lists
`read_for_clients`: tests/workflows/test_reading, tests/workflows/test_read_context
`thread_source`: tests/contract/test_hostile_archive, test_deletion
`uploads`: test_signing, tests/workflows/test_uploads
"""
