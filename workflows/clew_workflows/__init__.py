"""The session: its contract, its thread, its decisions, and the workflows that run them.

| package or module | content |
|---|---|
| `contract` | the inputs and answers of sessions, the payloads of entries, the context policy |
| `thread` | entries, lanes and layers; `thread.context` projects contexts |
| `session` | the decisions |
| `protocol` | effects and events: the inputs and answers of activities |
| `host` | the workflows, their handlers and effects |
| `values` | the base of values, compressed JSON, formats of stored states |
| `encryption` | keys, the codecs of Temporal's payloads, the sealing of stored objects |
| `temporal_faults` | workarounds of faults of Temporal's server and SDK |
"""
