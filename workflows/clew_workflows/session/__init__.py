"""The session's decisions: pure functions from state and event to state, entries and effects.

| module | content |
|---|---|
| `commands` | what an update or a signal does: accepted, refused, or repeated |
| `decisions` | what the result of an effect does; the begin, hibernation and end of a session |
| `runs` | the turn: the only module that says what comes next |
| `plan` | what should be going on beside the turn: waits, subagents, webhooks, hibernation |
| `requests`, `budgets`, `configuration` | a message's settings, its token budget, and the configuration in force |
| `tool_rounds`, `outside`, `subagents`, `hooks` | tool calls, and what they wait for: people, programs, sessions |
| `messages_taken`, `operations` | messages, steering and cancellations; context operations |
| `named_blobs`, `webhooks` | the blobs of a command and their limits; what webhooks are told |
| `summaries` | what a summary covers, and which model writes it; `thread.context.lane_view` says when one is due |
| `state`, `drafts`, `advance` | the state, the entries, and the commit of a decision |
| `carried`, `checkpoints` | the session as JSON for the next workflow run, and as a signed token |
| `views`, `ui` | the answers to queries, and what the Temporal UI and lists show |
"""
