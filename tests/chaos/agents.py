"""The agents of the sessions: a boss with all tools, and its helper."""

from clew import Agent, ContextPolicy
from tests.chaos.tools import big, charge, flaky, nap, note, order, wire

helper = Agent("helper", model="chaos:helper", tools=[note, charge], request_timeout_seconds=90)
boss = Agent(
    "boss",
    model="chaos:first",
    system_prompt="You lead.",
    tools=[note, charge, wire, flaky, nap, big, order, helper.as_tool(timeout_seconds=120)],
    context_policy=ContextPolicy(max_input_tokens=3000, reserve_output_tokens=100),
    request_timeout_seconds=120,
    on_busy="queue",
)
