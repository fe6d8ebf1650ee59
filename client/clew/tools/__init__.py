"""Tools: what a model may call, and how its calls are carried out.

@tool
def lookup_order(order_id: str) -> dict[str, str]:
    '''Where an order is and when it arrives.'''

| type | a call |
|---|---|
| `Tool` | runs a Python function on a worker of Clew's |
| `RemoteTool` | is an activity of another Temporal worker, in any language |
| `ExternalTool` | waits until a program or a person submits its result |
| `clew.agents.AgentTool` | is a task of an agent, in a session of its own |
"""

from clew.tools.definition import ToolDefinition
from clew.tools.function import Tool, ToolContext, tool
from clew.tools.remote import ExternalTool, RemoteTool, external_tool, make_tool, remote_tool

__all__ = [
    "ExternalTool",
    "RemoteTool",
    "Tool",
    "ToolContext",
    "ToolDefinition",
    "external_tool",
    "make_tool",
    "remote_tool",
    "tool",
]
