"""Tests of agents: a Temporal server, a worker and scripted models in the test's own process.

async with clew.testing.stack(tools=[refund]) as stack:
    replies = [Reply(tool_calls=[ToolCall("refund", {"order": "7"})]), "Done."]
    session = await stack.open(replies, tools=["refund"])
    assert await session.ask("My order is broken.") == "Done."
    (await stack.read(session)).expect_call("refund", order="7")

It needs the extra `testing`, which also brings fixtures for pytest: `clew_stack` and `clew_session`.

| name | purpose |
|---|---|
| `stack` | a server, a worker and scripted models; time that can be skipped, and workers that can die |
| `Reply`, `ToolCall`, `ScriptedRequest`, `ReceivedMedia` | the scripts of models |
| `ScriptFailed`, `Stuck` | why a test fails: what nobody scripted, and what it waits for in vain |
| `ThreadView` | what a session has done, with assertions |
| `replay` | whether recorded sessions continue under the code that is about to be deployed |
| `evaluate` | what another agent, or another model, replies in a recorded session |

Raises:
    ImportError: The extra is not installed.
"""

from clew_workflows.contract.extras import name_install

try:
    from clew.local import Reply, ToolCall
    from clew.testing.recorded import ReplayFailed, evaluate, replay
    from clew.testing.scripts import ReceivedMedia, Script, ScriptedRequest, ScriptFailed, Stuck
    from clew.testing.stack import Stack, stack
    from clew.testing.view import CalledTool, ThreadView
    from clew_audit.evaluation import Evaluation, Turn, TurnReply
except ImportError as error:
    message = f"clew.testing needs its libraries ({error.name} cannot be imported): {name_install('testing')}"
    raise ImportError(message, name=__name__) from error

__all__ = [
    "CalledTool",
    "Evaluation",
    "ReceivedMedia",
    "ReplayFailed",
    "Reply",
    "Script",
    "ScriptFailed",
    "ScriptedRequest",
    "Stack",
    "Stuck",
    "ThreadView",
    "ToolCall",
    "Turn",
    "TurnReply",
    "evaluate",
    "replay",
    "stack",
]
