"""An agent with a subagent, for workers in processes of their own. Their models are in the environment."""

import os

from clew import Agent

helper = Agent("helper", model=os.environ["SUBAGENTS_HELPER"])
boss = Agent("boss", model=os.environ["SUBAGENTS_BOSS"], tools=[helper.as_tool()])
