"""Agents under which a recorded session is asked again."""

from __future__ import annotations

from clew.agents import Agent

terse = Agent("terse", model="openai:gpt-4o", system_prompt="Be terse.")
kind = Agent("kind", model="openai:gpt-4o", system_prompt="Be kind.")
