"""The workflows: `session` is `AgentSession`, `services` are the short workflows beside it.

`core` decides and imports nothing of Temporal, `shell` carries out what it decides, `protocol` is what activities
receive and answer.
"""
