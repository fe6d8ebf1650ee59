"""Tests of the archive.

Tested in other modules:

`blobs`: tests/workflows/test_blobs
`errors`: test_store
`fork_session`: tests/workflows/test_forking
`listing`: tests/clew/session/test_listing
`reading`: tests/workflows/test_reading, tests/workflows/test_read_context
`thread_source`: tests/contract/test_hostile_archive, test_deletion
`uploads`: test_signing, tests/workflows/test_uploads
"""
