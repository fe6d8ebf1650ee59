"""What webhooks are told of a session: of which decisions, once each, and nothing of its texts."""

from __future__ import annotations

from typing import Any

from clew.contract import Webhook
from clew_workflows.protocol import Notice, RequestedTool
from clew_workflows.session import webhooks
from clew_workflows.session.carried import carry, restore
from tests.support.session_harness import SessionHarness

HOOK = Webhook(url="https://example.com/hook", secret="main")


def open_session(*tools: str, hooks: tuple[Webhook, ...] = (HOOK,), **config: Any) -> SessionHarness:
    session = SessionHarness(tools=tools or ("add",), webhooks=hooks, **config)
    session.ask(request_id="r")
    return session


def list_types(session: SessionHarness) -> list[str]:
    return [notice.message.type for notice in session.state.notices]


def test_the_end_of_a_request_is_told_with_its_entry() -> None:
    """The notice has the seqs, the status and the usage of the `run` entry."""
    session = open_session()
    session.reply("a secret")
    (notice,) = session.state.notices
    entry = session.thread[session.thread.last_seq]
    data = notice.message.data
    assert (data.seq, data.answer_seq, data.status, data.iterations) == (entry.seq, entry.seq - 1, "completed", 1)
    assert data.usage
    assert data.usage.model_calls == 1
    assert notice.message.timestamp == entry.at
    assert "secret" not in notice.model_dump_json()


def test_a_session_without_webhooks_notes_nothing() -> None:
    """Neither ends nor waits are noted, where nobody is told."""
    session = open_session("ask_first", "add_outside", hooks=())
    session.reply("", RequestedTool(name="ask_first"), RequestedTool(name="add_outside"))
    assert not session.state.notices


def test_calls_that_wait_are_told_when_they_begin_to_wait() -> None:
    """A call is told once for each thing that it waits for, whatever happens meanwhile to the others."""
    session = open_session("ask_first", "ask_outside", "add_outside", "add")
    tools = ("ask_first", "ask_outside", "add_outside", "add")
    session.reply("", *(RequestedTool(name=name) for name in tools))
    assert list_types(session) == ["approval.wanted", "external_call.waiting"]
    approval, external = (notice.message.data for notice in session.state.notices)
    assert [call.tool_call_id for call in approval.tool_calls or ()] == ["tool00001", "tool00002"]
    assert ([call.name for call in external.tool_calls or ()], external.waiting) == (["add_outside"], 1)
    session.answer_call("tool00004", "2")
    session.approve("tool00001")
    assert list_types(session) == ["approval.wanted", "external_call.waiting"]
    session.approve("tool00002")
    assert list_types(session)[2:] == ["external_call.waiting"]
    newest = session.state.notices[-1].message.data
    assert [call.tool_call_id for call in newest.tool_calls or ()] == ["tool00002"]


def test_many_calls_fit_into_one_message() -> None:
    """A message names 50 calls at most, says how many wait, and has less than 20 KB."""
    name = "ask_" + "x" * 60
    session = open_session(name)
    session.reply("", *(RequestedTool(name=name) for _ in range(128)))
    (notice,) = session.state.notices
    data = notice.message.data
    assert (len(data.tool_calls or ()), data.waiting) == (50, 128)
    assert len(notice.message.model_dump_json(exclude_none=True)) < 20_000


def test_a_limit_is_told_beside_the_end() -> None:
    """Of a run that has ended at a limit, both are told: with their own ids."""
    session = open_session(hooks=(HOOK,), max_iterations=1)
    session.reply("", "add")
    assert list_types(session) == ["request.ended", "limit.reached"]
    assert len({notice.notice_id for notice in session.state.notices}) == 2


def test_the_id_of_an_event_is_that_of_its_entry() -> None:
    """The same decision makes the same id again, as a replay does; another session makes another one."""

    def tell(**config: Any) -> Notice:
        session = open_session(**config)
        session.reply("fine")
        (notice,) = session.state.notices
        return notice

    assert tell() == tell()
    first, second = SessionHarness(tools=("add",), webhooks=(HOOK,)), open_session()
    first.ask(request_id="r")
    first.reply("one")
    first.ask(request_id="r2")
    first.reply("two")
    second.reply("fine")
    ids = [notice.notice_id for notice in first.state.notices]
    assert len(set(ids)) == 2
    assert second.state.notices[0].notice_id in ids


def test_notices_are_carried_over() -> None:
    """A workflow run hands the notices that it has not sent to the next one, and they are taken once."""
    session = open_session()
    session.reply("fine")
    carried = restore(carry(session.session)).state
    assert carried.notices == session.state.notices
    for notice in carried.notices:
        carried = webhooks.drop_notice(carried, notice).state
    assert not carried.notices


def test_each_webhook_is_told_what_it_wants() -> None:
    """The session's and the workers' webhooks are told; one that both have is told once."""
    limits = Webhook(url="https://example.com/limits", secret="main", events=("limit.reached",))
    session = open_session(hooks=(HOOK, limits))
    state = session.state
    assert webhooks.list_webhooks(state, "request.ended") == (HOOK,)
    assert webhooks.list_webhooks(state, "limit.reached") == (HOOK, limits)
