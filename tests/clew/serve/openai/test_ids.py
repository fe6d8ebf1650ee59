"""Ids of the API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.serve.openai import ids
from clew.serve.openai.ids import ResponseName
from clew_workflows.contract.errors import NotFound

PARTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200)


@given(PARTS, PARTS, st.none() | st.integers(0, 10**9))
def test_a_response_is_read_from_its_id(session_id: str, request_id: str, seq: int | None) -> None:
    """An id names the session, the request and the part that it was made of."""
    name = ResponseName(session_id, request_id, seq)
    assert ResponseName.read(name.id) == name


@given(st.text(max_size=80))
def test_any_other_text_is_no_id(text: str) -> None:
    """What is not an id of a response is not found, whatever it is."""
    with pytest.raises(NotFound):
        ResponseName.read(f"resp-{text}")
    read = ids.decode(f"msg_{text}", ids.MESSAGE)
    assert read is None or ids.encode(ids.MESSAGE, *read) == f"msg_{text}"


@pytest.mark.parametrize("seq", ["9" * 5000, "9" * 16, "-1", "1.0", "²"])
def test_a_part_has_the_seq_of_an_entry(seq: str) -> None:
    """A number that no entry can have is none."""
    with pytest.raises(NotFound):
        ResponseName.read(ids.encode("resp", "chat", "r", seq))


def test_ids_of_a_key_are_the_same_each_time() -> None:
    """A caller's key for repetitions names one session and one request; without it each is new."""
    assert ids.make_session_id("k") == ids.make_session_id("k")
    assert ids.make_request_id("k") == ids.make_request_id("k")
    assert ids.make_session_id("k") != ids.make_session_id("other")
    assert ids.make_session_id(None) != ids.make_session_id(None)
