"""External tools that a caller defines, beside those of the workers."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ExternalToolSpec, ToolResultInput
from clew.errors import InvalidInput, TooLarge, UnknownTool
from clew_workflows.contract.limits import MAX_TOOLS_BYTES
from clew_workflows.contract.payloads import ConfigPayload
from clew_workflows.protocol import Prepare, RequestedTool
from clew_workflows.session import configuration, outside, subagents, tool_rounds
from clew_workflows.session.carried import make_fork_state
from clew_workflows.session.state import Moment
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.thread import Thread
from tests.support.session_harness import SessionHarness, carry_over, make_agent

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def define(name: str = "weather", **fields: Any) -> ExternalToolSpec:
    """Define a tool of the caller's own."""
    return ExternalToolSpec(**({"name": name, "description": "Ask the page.", "parameters": CITY} | fields))


def begin(*tools: ExternalToolSpec, **config: Any) -> SessionHarness:
    """A session with the workers' tools `add` and `look`, and tools of its caller's own."""
    return SessionHarness(external_tools=tools or (define(),), **config)


def begin_under(agent: str | None) -> SessionHarness:
    """A session with a tool of its caller's own, whose other tools are an agent's; None: it has no agent."""
    if agent is None:
        return begin()
    session = SessionHarness(external_tools=(define(),), prepare=False, agent=agent)
    session.answer_preparation(agent=make_agent(agent, tools=("add", "look")))
    return session


def list_offered(session: SessionHarness) -> list[str]:
    """List the names of the tools that the next model call reads."""
    return [tool["name"] for tool in session.context().tool_spec]


def test_a_callers_tool_is_offered_beside_those_of_the_workers() -> None:
    """The model reads its schema, and a call waits for its result as long as the tool says."""
    session = begin(define(timeout_seconds=5))
    assert list_offered(session) == ["add", "look", "weather"]
    assert session.context().tool_spec[2] == define().spec
    session.ask(request_id="r")
    session.reply("", "add", RequestedTool(name="weather", arguments={"city": "Rome"}))
    (call,) = outside.list_pending_results(session.state)
    assert (call.name, call.arguments, call.expires_at) == ("weather", {"city": "Rome"}, 5.0)
    assert [planned.call.name for planned in session.round.calls] == ["add"]
    session.answer_call("tool00001", "3")
    session.do(ToolResultInput(tool_call_id=call.tool_call_id, content={"degrees": 21}))
    session.reply("21 degrees")
    assert session.find_ending("r") == ("completed", "final_answer")


def test_the_arguments_of_its_calls_are_validated() -> None:
    """The model reads what is wrong, and nothing waits."""
    session = begin()
    session.ask()
    session.reply("", RequestedTool(name="weather", arguments={"town": "Rome"}))
    assert outside.list_pending_results(session.state) == ()
    assert "invalid arguments: city: it is missing" in session.thread[session.thread.last_seq].payload["content"]


@pytest.mark.parametrize(
    "settings", [{"requires_approval": True}, {}], ids=["the tool says so", "the session says so"]
)
def test_its_calls_may_need_an_approval(settings: dict[str, Any]) -> None:
    """By its own setting, or by the session's `require_approval`."""
    session = begin(define(**settings), require_approval=() if settings else ("weather",))
    session.ask()
    session.reply("", RequestedTool(name="weather", arguments={"city": "Rome"}))
    assert session.state.phase == "awaiting_approval"
    session.approve("tool00001")
    assert [call.name for call in outside.list_pending_results(session.state)] == ["weather"]


def test_approvals_for_tools_that_nobody_has_are_refused() -> None:
    """The names of the caller's tools count with those of the workers."""
    session = begin()
    session.configure(require_approval=("weather", "add"))
    with pytest.raises(UnknownTool):
        session.configure(external_tools=(define("clock"),), require_approval=("weather",))


def test_a_message_may_select_it() -> None:
    """By name, like a tool of the workers."""
    session = begin()
    session.ask(tools=("weather",))
    assert [tool["name"] for tool in session.build_context(session.call).tool_spec] == ["weather"]
    session.reply("", "add")
    assert "unknown tool 'add'" in session.thread[session.thread.last_seq].payload["content"]


def test_a_list_replaces_the_one_before() -> None:
    """At once if nothing runs, without a worker; the `config` entry says what has changed."""
    session = begin()
    before = len(session.effects)
    session.configure(external_tools=(define("clock"), define("map")))
    assert list_offered(session) == ["add", "look", "clock", "map"]
    assert session.thread[session.thread.last_seq].payload["changes"] == ["tools", "external_tools"]
    session.configure(external_tools=())
    assert list_offered(session) == ["add", "look"]
    assert len(session.effects) == before


def test_a_change_waits_for_the_end_of_the_run() -> None:
    """The run keeps the tools that it began with."""
    session = begin()
    session.ask()
    session.configure(external_tools=(define("clock"),))
    session.reply("", RequestedTool(name="weather", arguments={"city": "Rome"}))
    session.do(ToolResultInput(tool_call_id="tool00001", content="warm"))
    session.reply("It is warm.")
    assert list_offered(session) == ["add", "look", "clock"]


def test_the_name_of_a_workers_tool_is_refused() -> None:
    """At once where the session knows it: a call must not reach another tool than the caller or the worker meant."""
    session = begin()
    with pytest.raises(InvalidInput, match=r"external_tools\.1\.name"):
        session.configure(external_tools=(define(), define("look")))
    with pytest.raises(InvalidInput, match=r"external_tools\.0\.name"):
        session.configure(tools=("weather",))
    assert list_offered(session) == ["add", "look", "weather"]


def test_a_workers_tool_that_takes_the_name_later_makes_requests_fail() -> None:
    """With the reason, until the caller gives its tool another name."""
    session = SessionHarness(tools=("add",), external_tools=(define("look"),), prepare=False)
    session.answer_preparation(tools=("add", "look"))
    session.ask(request_id="r")
    session.answer_preparation(tools=("add", "look"))
    assert session.find_outcome("r")["error"]["type"] == "invalid_input"
    session.configure(external_tools=(define(),))
    assert isinstance(session.effect, Prepare)
    session.answer_preparation(tools=("add", "look"))
    assert list_offered(session) == ["add", "look", "weather"]
    session.ask(request_id="again")
    assert session.call.request_id == "again"


def test_all_schemas_together_are_bounded() -> None:
    """Those of the workers count, too."""
    session = begin()
    with pytest.raises(TooLarge):
        session.configure(external_tools=(define(description="x" * (MAX_TOOLS_BYTES - 250)),))


def test_the_next_workflow_run_has_them() -> None:
    """A rollover carries them, and a call that waits keeps its time."""
    session = begin(define(timeout_seconds=5))
    session.ask()
    session.reply("", RequestedTool(name="weather", arguments={"city": "Rome"}))
    carried = carry_over(session)
    assert carried.state.settings.config.external_tools == (define(timeout_seconds=5),)
    assert [call.expires_at for call in outside.list_pending_results(carried.state)] == [5.0]
    assert tool_rounds.get_tool(carried.state, "weather").spec == define().spec


@pytest.mark.parametrize("agent", [None, "support"])
def test_a_fork_has_those_of_its_entry(agent: str | None) -> None:
    """Not those that the parent has got since, with an agent and without."""
    session = begin_under(agent)
    session.ask()
    session.reply("fine")
    at_seq = session.thread.last_seq
    session.configure(external_tools=(define("clock"),))
    shared = Thread(session.thread.slice(0, at_seq))
    state = make_fork_state(session.session, shared, "s-2", [])
    assert [tool.spec["name"] for tool in state.settings.offered_tools] == ["add", "look", "weather"]
    assert state.settings.own.external_tools == (define(),)


@pytest.mark.parametrize("agent", [None, "support"])
def test_an_entry_holds_the_configuration_with_them(agent: str | None) -> None:
    """It is read back as callers have set it: the names of their tools are none of the workers'."""
    session = begin_under(agent)
    payload = session.thread[0].read(ConfigPayload)
    assert (payload.configured_tools, payload.config.external_tools) == (["add", "look"], (define(),))
    assert "external_tools" not in (payload.own or {})
    own, _, _ = configuration.split_config(payload)
    assert own.external_tools == (define(),)


def test_a_session_without_them_has_none_in_its_entries() -> None:
    """Entries of earlier releases are the same bytes."""
    assert "external_tools" not in SessionHarness().thread[0].payload


def test_a_subagent_does_not_have_them() -> None:
    """They are the caller's of the parent, which waits for them."""
    session = begin(tools=("add", "helper_agent"))
    session.ask()
    session.reply("", RequestedTool(name="helper_agent", arguments={"a": 1}))
    (child,) = session.state.children
    start = subagents.make_start(session.state, child, Moment(session.thread.rev, 0.0))
    assert start is not None
    assert start.config.external_tools == ()


def test_a_context_of_an_earlier_call_has_those_of_its_time() -> None:
    """The thread alone says what the model saw."""
    session = begin()
    session.ask()
    seq = session.call.at_seq
    session.reply("fine")
    session.configure(external_tools=())
    assert [tool["name"] for tool in build_context(session.thread, at_seq=seq).tool_spec] == [
        "add",
        "look",
        "weather",
    ]


def test_the_patterns_of_all_external_tools_are_bounded() -> None:
    """Together, because all of them are compiled in one workflow task."""

    def define_matching(name: str, patterns: int) -> ExternalToolSpec:
        properties = {str(number): {"type": "string", "pattern": "a"} for number in range(patterns)}
        return define(name, parameters={"type": "object", "properties": properties})

    tool_rounds.check_external_tools([define_matching("a", 50), define_matching("b", tool_rounds.MAX_PATTERNS - 50)])
    with pytest.raises(InvalidInput, match=r"external_tools\.1\.parameters: with it there are over 100 patterns"):
        tool_rounds.check_external_tools([define_matching("a", 50), define_matching("b", 51)])
