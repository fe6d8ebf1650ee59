"""The session in Temporal: handlers, timers, activities, rollover and hibernation.

| module | content |
|---|---|
| `agent_session`, `services` | the workflow of a session, and the workflows that serve clients in any language |
| `handlers`, `ingress`, `intake`, `answers` | from an update or a signal to its decision and its answer |
| `runtime`, `reconciler`, `execution` | the hosted session; what goes on in it; activities and their time |
| `retries` | when an activity is attempted again |
| `rollover`, `recalling` | beginning and end of a workflow run, hibernation; archived entries that contexts need |
| `row`, `telemetry` | the row in lists; logs, metrics and spans of turns |
| `local_runs`, `payload_converter` | what sessions tell activities of their process; unreadable payloads |
"""
