"""Tests of the command line. `test_compare` is of `report`, with a session of its own.

Tested in other modules:

`main`: test_app, test_failures; all commands of tests/support/command_line start it
`operators`: test_compare, without the extra `worker`; test_offline, with it
`command`: test_control, test_app, test_failures
`reach`: test_failures, test_hints
`serve`: tests/clew/serve/test_service_process
"""
