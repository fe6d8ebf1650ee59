"""The session in Temporal: handlers, timers, activities, rollover and hibernation.

| module | content |
|---|---|
| `agent_session`, `services` | the workflow of a session, and the workflows that serve clients in any language |
| `handlers`, `ingress`, `intake`, `answers`, `waiters` | from an update or a signal to its decision and its answer |
| `runtime`, `effects`, `execution` | the hosted session; effects in flight; activities, their timeouts and retries |
| `startup`, `rollover`, `tasks` | beginning and end of a workflow run; hibernation; the size of its history |
| `visibility`, `telemetry` | when lists are updated; logs, metrics and spans of turns |
| `subagents`, `duties`, `payload_converter` | commands between sessions, background work, unreadable payloads |
"""
