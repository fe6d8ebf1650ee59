"""Work that grows with a text runs in a thread if the text is long; activities count tokens as the session would."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.model import prepare, reply_in_progress
from clew_activities.offload import MAX_INLINE_SIZE, offload
from clew_activities.tools import run_tool
from clew_workflows.contract.names import EncodingName
from clew_workflows.contract.tokens import ENCODINGS, load_encoding
from clew_workflows.protocol import ModelReply, RequestedTool, ResolvedTool, RunTool, ToolAnswered
from clew_workflows.session import drafts, tool_rounds
from clew_workflows.session.state import RequestedCall
from clew_workflows.thread.entries import Draft, Entry
from tests.support.examples import examples
from tests.support.session_harness import SessionHarness, make_reply


async def test_only_long_texts_need_a_thread() -> None:
    """A short text is worked on at once, a long one in a thread; arguments and results pass through."""
    here = threading.get_ident()
    assert await offload(MAX_INLINE_SIZE, threading.get_ident) == here
    assert await offload(MAX_INLINE_SIZE + 1, threading.get_ident) != here
    assert await offload(1, int, "ff", base=16) == 255


texts = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=40), st.integers(0, 60))
values = st.dictionaries(st.text(max_size=9), st.one_of(texts, st.integers(-(2**60), 2**60), st.floats(0, 1)))


def commit(draft: Draft, name: str) -> Entry:
    return draft.commit(7, "e7", "", load_encoding(name))


def run_calls(name: str) -> SessionHarness:
    """A session in the middle of a round."""
    session = SessionHarness(encoding=name)
    session.ask()
    session.reply("", "look", "add")
    return session


@pytest.mark.parametrize("name", ENCODINGS)
@given(content=texts, arguments=values, edited=st.booleans())
@examples(40)
def test_a_result_is_counted_as_in_its_session(name: str, content: str, arguments: Any, edited: bool) -> None:
    """Also one that comes late, and one of a call that a person has changed."""
    session = run_calls(name)
    run = session.state.run
    assert run is not None
    planned, _ = session.round.calls[0]
    call = RequestedCall(planned.tool_call_id, planned.name, arguments, edited=edited)
    command = RunTool.model_validate(planned.model_dump() | {"arguments": arguments, "edited": edited})
    answer = ToolAnswered(content=content)
    counted = asyncio.run(run_tool._count_answer(answer, command))
    assert counted.tokens is not None
    uncounted = drafts.draft_tool_message(run, call, answer)
    assert commit(drafts.draft_tool_message(run, call, counted), name) == commit(uncounted, name)
    doubt = drafts.make_tool_result(run, call, ToolAnswered(content="in doubt", in_doubt=True))
    late = Draft(drafts.make_late_result(doubt, counted), tokens=counted.tokens)
    assert commit(late, name) == commit(Draft(drafts.make_late_result(doubt, answer)), name)


@pytest.mark.parametrize("name", ENCODINGS)
@given(
    content=texts,
    tools=st.lists(st.tuples(st.sampled_from(["look", "gone"]), values), max_size=3),
    reason=st.sampled_from(["stop", "paused"]),
)
@examples(40)
def test_a_reply_is_counted_as_in_its_session(
    name: str, content: str, tools: list[tuple[str, Any]], reason: Any
) -> None:
    """With its tool calls, whose ids the session numbers, and the data of its provider."""
    session = run_calls(name)
    session.answer_calls("a", "b")
    run = session.state.run
    assert run is not None
    requested = tuple(RequestedTool(name=tool, arguments=arguments) for tool, arguments in tools)
    data: Any = {"provider": "scripted", "blocks": [{"text": content}]}
    reply = ModelReply(content=content, tool_calls=requested, provider_data=data, stop_reason=reason)
    tokens = asyncio.run(reply_in_progress.count_reply(reply, session.call))
    calls = tuple(call for call, _ in tool_rounds.open_calls(session.state, run, reply))
    draft = drafts.draft_assistant_message(run, make_reply(**dict(reply)), calls)
    assert commit(replace(draft, tokens=tokens), name) == commit(draft, name)


@pytest.mark.parametrize("name", ENCODINGS)
@given(tools=st.lists(st.tuples(st.text(), values), max_size=3))
@examples(20)
def test_schemas_are_counted_as_in_their_session(name: EncodingName, tools: list[tuple[str, Any]]) -> None:
    """The configuration's entry has the sum of the tools, and counts its prompt itself."""
    resolved = tuple(
        ResolvedTool(
            spec={"name": f"t{number}", "description": text, "parameters": parameters},
            timeout_seconds=1,
            max_attempts=1,
        )
        for number, (text, parameters) in enumerate(tools)
    )
    settings = replace(SessionHarness(encoding=name, system_prompt="Be brief.").state.settings, tools=resolved)
    counted = replace(settings, tools=prepare._count_schemas(resolved, name))
    assert commit(drafts.draft_config(counted), name) == commit(drafts.draft_config(settings), name)
