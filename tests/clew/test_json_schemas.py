"""The schemas of what a session's streams send."""

from __future__ import annotations

from typing import Any, get_args

import jsonschema_rs

from clew.json_schemas import definitions, event_union
from clew.session.events import EntryCommitted, SessionEvent, TextAdded
from clew.thread import Entry
from tests.support.session_harness import SessionHarness


def validate(value: Any) -> bool:
    """Whether a JSON value is valid for an event."""
    schemas = definitions([("SessionEvent", event_union())])
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/SessionEvent"}
    return jsonschema_rs.validator_for({**schema, "$defs": schemas}).is_valid(value)


def test_an_event_is_valid_as_it_is_sent() -> None:
    """The events of every entry of a conversation are, and what lacks a field that is always there is not."""
    session = SessionHarness(system_prompt="Be brief.")
    session.ask("What is it?", request_id="r-1")
    session.reply("This.")
    entries: list[Entry] = session.thread.slice(0, session.thread.last_seq)
    assert entries
    for entry in entries:
        event = EntryCommitted(seq=entry.seq, entry=entry).as_dict()
        assert validate(event), event
        assert not validate(event | {"entry": event["entry"] | {"payload": {}}})
    text = TextAdded(call_id="c", attempt=1, offset=0, text="a").as_dict()
    assert validate(text)
    assert not validate({name: value for name, value in text.items() if name != "offset"})


def test_every_event_is_a_member_of_the_union() -> None:
    """A new type of event is in it by itself."""
    schema = definitions([("SessionEvent", event_union())])["SessionEvent"]
    assert len(schema["oneOf"]) == len(get_args(SessionEvent))
