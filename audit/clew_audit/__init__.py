"""What operators do with sessions from outside: audit, verify, recover, export, import.

It replays histories with the workflow's own code and reads the archive's store, so that it needs the extra `worker`.
`clew.operators` is the door to it, and `clew audit`, `clew recover`, … are its commands.
"""
