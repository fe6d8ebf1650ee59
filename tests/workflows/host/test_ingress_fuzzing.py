"""For any bytes and any JSON a handler's decoder returns a command or a small refusal."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clew.errors import (
    Refusal,
)
from clew_workflows.host import ingress
from tests.support.examples import examples
from tests.support.hostile_input import make_raw
from tests.support.ingress import DECODERS, VALID, Args, make_arguments


def decode_or_refuse(name: str, arguments: Args) -> Any:
    """Decode arguments; returns None if they are refused, with a short message."""
    try:
        return DECODERS[name](arguments)
    except Refusal as refusal:
        size = len(str(refusal).encode())
    assert size < 1000
    return None


payloads = st.lists(
    st.builds(
        make_raw,
        st.binary(max_size=200),
        st.none() | st.dictionaries(st.sampled_from(["encoding", "other"]), st.binary(max_size=12), max_size=2),
    ),
    max_size=3,
)


@examples(200)
@given(name=st.sampled_from(list(DECODERS)), arguments=payloads)
def test_no_bytes_do_more_than_be_refused(name: str, arguments: Args) -> None:
    """Arbitrary payloads give a command or a refusal, and their excerpt can be stored."""
    decode_or_refuse(name, arguments)
    excerpt = ingress.make_excerpt(arguments)
    assert len(excerpt) <= 200
    excerpt.encode()


FIELDS = sorted(
    {
        *(
            "config",
            "carried",
            "content",
            "request_id",
            "model",
            "tools",
            "limits",
            "context_policy",
            "model_options",
        ),
        *(
            "metadata",
            "output_schema",
            "system_prompt",
            "token_budget",
            "page",
            "at_seq",
            "kind",
            "reason",
            "strategy",
        ),
        *("max_iterations", "temperature", "stop", "seed", "low_water", "include_kinds", "clear_tool_results"),
    }
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**310)
    | st.floats()
    | st.sampled_from(["openai:gpt-4o", "react", "hello", "\ud800", "x" * 300])
    | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner),
    max_leaves=12,
)


@examples(300)
@given(name=st.sampled_from(list(DECODERS)), value=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4))
def test_no_json_does_more_than_be_refused(name: str, value: dict[str, Any]) -> None:
    """Arbitrary JSON under known names gives a command or a refusal, and what passed can be written again."""
    for whole in (value, VALID[name] | value):
        if (passed := decode_or_refuse(name, make_arguments(whole))) is not None:
            passed.model_dump_json().encode()
