"""An event as a dict, as JSON and as a server-sent event."""

from __future__ import annotations

import json

import httpx
from httpx_sse import EventSource, ServerSentEvent

from clew.session.events import EntryCommitted, TextAdded
from clew_workflows.thread.entries import Entry

ENTRY = Entry.from_json({"seq": 4, "id": "e4", "kind": "run", "at": "", "payload": {}, "refs": {}, "tokens": 0})


def decode(stream: str) -> list[ServerSentEvent]:
    """Decode a stream of server-sent events, as a client does."""
    response = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=stream)
    return list(EventSource(response).iter_sse())


def test_events_are_sent_to_a_browser() -> None:
    """Each is one message. An entry has its cursor as the id, which stays the last one until the next entry."""
    events = (
        EntryCommitted(seq=4, entry=ENTRY, request_id="r"),
        TextAdded(call_id="call-1", attempt=1, offset=0, text="two\nlines\r\n\nand a \u2028 é"),
    )
    received = decode("".join(event.to_sse() for event in events))
    assert [json.loads(message.data) for message in received] == [event.as_dict() for event in events]
    assert [message.id for message in received] == ["5", "5"]
    assert {message.event for message in received} == {"message"}


def test_json_is_one_line() -> None:
    """`to_json` is the JSON of `as_dict`, without absent fields."""
    event = TextAdded(call_id="c", attempt=1, offset=0, text="a\nb")
    assert event.to_json() == '{"type":"text","call_id":"c","attempt":1,"offset":0,"text":"a\\nb"}'
