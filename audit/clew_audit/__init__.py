"""Operators' tools: audit, verify, recover, export and import sessions from outside.

They replay histories with the workflow's own code and read the archive's store, so they need the extra `worker`.
`clew.operators` exports them; `clew audit`, `clew recover` and others are their commands.

| module | content |
|---|---|
| `audit` | compares the histories, the archive and the live session of one thread |
| `verification` | reads every object of an archive, or encrypts it anew |
| `recovery` | restores a session that was terminated, timed out or reset |
| `exports` | writes a thread to a file, and makes a session of a file |
| `evaluation` | asks recorded model calls again, under another agent |
| `codec_server` | decrypts payloads for the Temporal UI |
| `histories` | event histories, from the server or from a file |
| `replay` | the session's state after a history, replayed offline |
| `state_builder` | the session's state after its entries |
| `differences` | comparisons of entries and of model calls |
| `json_lines` | files of JSON Lines with a checksum |
"""
