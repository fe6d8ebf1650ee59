"""What a heartbeat shows of a growing reply, and what of a reply fits into a payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json
from temporalio.testing import ActivityEnvironment

from clew_activities.model import reply_in_progress
from clew_activities.model.reply_in_progress import MAX_REPLY_BYTES, MAX_STREAMED_CHARACTERS, ReplyInProgress
from clew_activities.providers import RedactedDecoder, Redaction
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply, RequestedTool
from tests.support.examples import examples
from tests.support.session_harness import SessionHarness


@dataclass
class Growing:
    """A decoder in the middle of its reply."""

    text: str = ""
    thinking: str = ""
    tool_name: str | None = None
    arguments_size: int = 0
    usage: Usage = Usage()
    ended: bool = False

    def feed(self, event: str, data: str) -> None: ...

    def finish(self) -> ModelReply:
        raise NotImplementedError


def read_progress(decoder: Growing | None) -> dict[str, Any]:
    session = SessionHarness(model="scripted:m")
    session.ask("hello")
    reading = ReplyInProgress(session.call, ())
    if decoder:
        reading.meta = session.build_context(session.call).meta
        reading.decoder = RedactedDecoder(decoder, Redaction())
    progress: dict[str, Any] = ActivityEnvironment().run(reading.describe)[0]
    return progress


def test_a_growing_reply_is_shown_by_its_newest_part() -> None:
    """`offset` counts the characters left out in front: offset and text together are the reply so far."""
    text = "".join(chr(0x4E00 + n % 20_000) for n in range(MAX_STREAMED_CHARACTERS * 2 + 5))
    for length in (0, 1, MAX_STREAMED_CHARACTERS, MAX_STREAMED_CHARACTERS + 1, len(text)):
        state = read_progress(Growing(text=text[:length]))
        assert text[: state["offset"]] + state["text"] == text[:length]
        assert len(state["text"]) <= MAX_STREAMED_CHARACTERS


def test_thinking_and_the_tool_are_shown_where_there_are_any() -> None:
    """Absent fields are left out."""
    assert "thinking" not in read_progress(None)
    assert "thinking" not in read_progress(Growing(text="a"))
    state = read_progress(Growing(thinking="x" * (MAX_STREAMED_CHARACTERS + 1), tool_name="add"))
    assert (len(state["thinking"]), state["tool_name"], state["text"]) == (MAX_STREAMED_CHARACTERS, "add", "")


texts = st.builds(
    lambda character, size: character * size,
    st.sampled_from(["x", "\x01", '"', "é", "\U0001f43b"]),
    st.integers(0, 262_144),
)
# Within what a decoder lets through: 256 KiB of text, of thinking and of arguments, 64 calls.
replies = st.builds(
    ModelReply,
    content=texts.map(lambda text: text.encode()[:262_144].decode("utf-8", "ignore")),
    thinking=st.none() | texts,
    tool_calls=st.lists(
        st.builds(
            RequestedTool,
            name=st.sampled_from(["add", "\x01" * 256]),
            arguments=texts.map(lambda text: {"text": text[:4096]}),
        ),
        max_size=64,
    ).map(tuple),
    provider_data=st.none() | texts.map(lambda text: {"provider": "anthropic", "blocks": [{"signature": text}]}),
    usage=st.just(Usage(input_tokens=5)),
)


@examples(60)
@given(reply=replies)
def test_every_reply_fits_into_one_payload(reply: ModelReply) -> None:
    """A reply that fits is unchanged; a larger one loses as little as possible, and never a call or the usage."""
    fitted = reply_in_progress.fit_reply(reply)
    assert len(to_json(fitted)) <= MAX_REPLY_BYTES
    if len(to_json(reply)) <= MAX_REPLY_BYTES:
        assert fitted == reply
    assert [tool.name for tool in fitted.tool_calls] == [tool.name for tool in reply.tool_calls]
    assert (fitted.usage, fitted.stop_reason) == (reply.usage, reply.stop_reason)
    if fitted.content != reply.content:
        assert fitted.content.endswith("[truncated]")
        assert reply.content.startswith(fitted.content.removesuffix("[truncated]"))


def test_what_can_be_spared_is_lost_first() -> None:
    """The thinking; then what only its provider would read; an answer only where that is not enough."""
    size = MAX_REPLY_BYTES * 2 // 3
    thought = ModelReply(content="x" * size, thinking="y" * size, tool_calls=(RequestedTool(name="add"),))
    assert reply_in_progress.fit_reply(thought) == thought.model_copy(update={"thinking": None})
    data: Any = {"provider": "anthropic", "blocks": [{"signature": "z" * size}]}
    signed = thought.model_copy(update={"thinking": None, "provider_data": data})
    assert reply_in_progress.fit_reply(signed) == thought.model_copy(update={"thinking": None})
