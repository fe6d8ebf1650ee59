"""The workflows: `session` holds `AgentSession`, `services` the short workflows beside it.

`core` holds the decisions and imports nothing of Temporal. `shell` carries the decisions out. `protocol` holds the
inputs and the answers of activities.
"""
