"""The count of actions: what it reads from a server's metrics, and the model that its turns call."""

from __future__ import annotations

from typing import Any

from bench.actions import answer, parse_actions
from bench.peers.conversation import ANSWER

METRICS = """\
# TYPE action counter
action{action_type="command_StartTimer",namespace="default",operation="RespondWorkflowTaskCompleted"} 2
action{action_type="message_UpdateWorkflowExecution_Acceptance",namespace="default"} 3
action{action_type="message_UpdateWorkflowExecution_Rejection",namespace="default"} 1
action{action_type="command_ModifyWorkflowProperties",namespace="default"} 5
action{action_type="a_new_kind",namespace="default"} 1e+01
service_requests{namespace="default",operation="DescribeWorkflowExecution"} 31
"""


def test_actions_are_counted_by_kind() -> None:
    """Refused updates count, updates of the memo and reads do not, and an unknown kind keeps its name."""
    assert parse_actions(METRICS) == {"timer": 2, "update": 4, "a_new_kind": 10}


def test_the_model_takes_its_time_and_calls_the_tool_once() -> None:
    """Streamed, the words take the seconds; otherwise the response waits. An agent without tools gets an answer."""
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": "[seconds 3.0] go"}]}
    streamed = answer({**ask, "stream": True})
    assert streamed.tokens_per_second == len(ANSWER.split()) / 3
    assert answer(ask).delay_seconds == 3
    call = {"messages": [{"role": "user", "content": "[tool] [seconds 0.5] go"}]}
    tool: dict[str, Any] = {"function": {"parameters": {"properties": {"order": {}}}}}
    assert not answer(call).tool_calls
    (called,) = answer({**call, "tools": [tool]}).tool_calls
    assert called.arguments == {"order": 1}
    call["messages"].append({"role": "tool", "content": "found"})
    assert answer({**call, "tools": [tool]}).text == ANSWER
