"""Tests of the parts of one machine. `test_local` starts each part.

Tested in other modules:

`development`: tests/clew/cli/test_serve_commands
`leash`: test_child
`model`: test_local
`temporal`: test_local; with a folder of its own: tests/deploy/test_chat
`worker_process`: test_local
"""
