"""Operators' tools: audit, verify, recover, export and import sessions from outside.

They replay histories with the workflow's own code and read the archive's store, so they need the extra `worker`.
`clew.operators` exports them; `clew audit`, `clew recover` and others are their commands.

| module | holds |
|---|---|
| `audit` | compares the histories, the archive and the live session of one thread |
| `verification` | reads every object of an archive |
| `recovery` | restores a session that was terminated, timed out or reset |
| `exports` | writes a thread to a file, and makes a session of a file |
| `histories` | event histories, from the server or from a file |
| `replay` | the session's state after a history, replayed offline |
| `state_builder` | the session's state after its entries |
| `restart` | writes a session's archive and starts the session from it |
| `differences`, `calls` | comparisons of entries and of model calls |
| `json_lines` | files of JSON Lines with a checksum |
"""
