"""The session's decisions: pure functions from state and event to state, entries and effects."""
