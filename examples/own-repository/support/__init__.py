"""The shop's support agent."""
