"""An agent with a subagent and a tool, for workers in processes of their own. Their models are in the environment."""

import os

from clew import Agent
from tests.support import toolbox

helper = Agent("helper", model=os.environ["SUBAGENTS_HELPER"])
boss = Agent("boss", model=os.environ["SUBAGENTS_BOSS"], tools=[helper.as_tool(), toolbox.add])
