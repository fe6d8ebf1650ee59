"""The agent. Sessions name it; the worker gives them its newest version."""

from clew import Agent
from support.tools import lookup_order, refund

support = Agent(
    "support",
    model="openai:gpt-4o-mini",
    system_prompt="You help customers of a shop with their orders. Look an order up before you speak about it.",
    tools=[lookup_order, refund],
    limits={"max_cost_usd": 1.0},
    version="1",
)
