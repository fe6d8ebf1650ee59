"""The reader of server-sent events: it follows WHATWG's standard, and reads what servers write beside it."""

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers.sse import SseParser

Events = list[tuple[str, str]]


def parse(body: bytes, size: int = 1_000_000) -> Events:
    parser = SseParser()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


TABLE: dict[str, tuple[bytes, Events]] = {
    "an event": (b"data: a\n\n", [("message", "a")]),
    "one space is left out": (b"data:  a\n\ndata:b\n\n", [("message", " a"), ("message", "b")]),
    "a name": (b"event: x\ndata: a\n\ndata: b\n\n", [("x", "a"), ("message", "b")]),
    "many lines": (b"data: a\ndata\ndata: b\n\n", [("message", "a\n\nb")]),
    "comments, ids and unknown fields": (b": c\nid: 1\nretry: 5\nother: x\ndata: a\n\n", [("message", "a")]),
    "a name without data": (b"event: x\n\ndata: a\n\n", [("message", "a")]),
    "empty data": (b"data:\n\n", [("message", "")]),
    "each end of a line": (b"data: a\r\ndata: b\rdata: c\n\r\n", [("message", "a\nb\nc")]),
    "other separators": ("data: a\u2028b\x0bc\x85\n\n".encode(), [("message", "a\u2028b\x0bc\x85")]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
    "no byte order mark later": (b"\n\xef\xbb\xbfdata: a\n\ndata: b\n\n", [("message", "b")]),
    "bytes that are no text": (b"data: a\xffb\n\n", [("message", "a\ufffdb")]),
    "no empty line at the end": (b"data: a\n\ndata: b", [("message", "a"), ("message", "b")]),
    "an error in a field of its own": (b'error: {"a": 1}\n\n', [("error", ' {"a": 1}')]),
    "JSON as it is": (b'{"a": 1}\n', [("message", '{"a": 1}')]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("body", "events"), TABLE.values(), ids=TABLE)
def test_events_are_read_as_the_standard_says(body: bytes, events: Events, size: int) -> None:
    """Also where the pieces of the body end within a line, its end or a character."""
    assert parse(body, size) == events


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data: \xc3\xbc", b"event: x", b"event", b": c", b"id: 1", b""]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS)), st.integers(1, 9))
async def test_another_reader_reads_the_same(lines: list[tuple[bytes, bytes]], size: int) -> None:
    body = b"".join(map(b"".join, lines))
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body + b"\n\n")
    events = [(event.event, event.data) async for event in EventSource(response).aiter_sse() if event.data]
    assert [event for event in parse(body, size) if event[1]] == events
