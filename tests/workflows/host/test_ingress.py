"""The one door: whatever arrives becomes a typed command or a refusal, and never anything else."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio import workflow

from clew.contract import Limits, SubagentResultInput
from clew.contract.limits import MAX_MESSAGE_BYTES, MAX_SYSTEM_PROMPT_BYTES, MAX_TOOL_RESULT_BYTES
from clew.errors import (
    ClewError,
    ContextOverflow,
    EmptyContent,
    InvalidInput,
    InvalidTokenBudget,
    TooLarge,
    UnsupportedStrategy,
)
from clew_workflows.host import ingress
from clew_workflows.session import decisions, requests
from tests.support.hostile_input import make_raw
from tests.support.ingress import (
    CONFIG,
    DECODERS,
    OPTIONAL,
    START,
    VALID,
    Args,
    decode_message,
    decode_refusal,
    make_arguments,
)


@pytest.mark.parametrize("name", DECODERS)
def test_what_the_contract_allows_is_taken(name: str) -> None:
    """Ingress accepts the smallest input of each update and signal."""
    assert DECODERS[name](make_arguments(VALID[name])) is not None


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize(
    "nothing",
    [
        [],
        make_arguments(b"null"),
        [make_raw(b"", {"encoding": b"binary/null"})],
        [make_raw(b"", {})],
        make_arguments({}),
    ],
)
def test_where_everything_is_optional_nothing_is_enough(name: str, nothing: Args) -> None:
    """No argument, null and an empty object are one and the same."""
    assert DECODERS[name](nothing) == DECODERS[name](make_arguments({}))


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in OPTIONAL])
@pytest.mark.parametrize(
    "nothing", [[], make_arguments(b"null"), [make_raw(b"", {"encoding": b"binary/null"})], make_arguments(b"")]
)
def test_where_something_is_needed_nothing_is_refused(name: str, nothing: Args) -> None:
    """No argument and null are `invalid_input`."""
    assert isinstance(decode_refusal(name, nothing), InvalidInput)


@pytest.mark.parametrize("count", [2, 3, 50])
def test_several_arguments_are_refused(count: int) -> None:
    """An update with several arguments is refused; the message has their number."""
    for name in DECODERS:
        assert str(count) in str(decode_refusal(name, make_arguments(*[VALID[name]] * count))), name


@pytest.mark.parametrize(
    "metadata", [{}, {"encoding": b"json/protobuf"}, {"encoding": b"binary/plain"}, {"encoding": b"\xff\xfe"}]
)
def test_only_plain_json_is_taken(metadata: dict[str, bytes]) -> None:
    """Another encoding is refused, whatever the bytes are."""
    for name in DECODERS:
        arguments = [make_raw(json.dumps(VALID[name] | {"reason": "x"}).encode(), metadata)]
        assert "json/plain" in str(decode_refusal(name, arguments)), name


DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
NOT_JSON = {
    "empty": b" ",
    "cut short": b'{"content": "hel',
    "invalid UTF-8": b'{"content": "\xff\xfe"}',
    "overlong UTF-8": b'{"content": "\xc0\x80"}',
    "encoded surrogate": b'{"content": "\xed\xa0\x80"}',
    "lone surrogate": rb'{"content": "\ud800"}',
    "lone low surrogate": rb'{"content": "a\udc00b"}',
    "surrogates the wrong way round": rb'{"content": "\ude00\ud83d"}',
    "surrogate in a name": rb'{"\ud800": 1}',
    "control character": b'{"content": "a\x00b"}',
    "Python": b"{'content': 'hello'}",
    "a comma too many": b'{"content": "hello",}',
    "a comment": b'{"content": "hello"} // said',
    "two values": b'{"content": "a"}{"content": "b"}',
    "a byte order mark": b'\xef\xbb\xbf{"content": "a"}',
    "UTF-16": '{"content": "hello"}'.encode("utf-16"),
    "deep objects": DEEP,
    "deep arrays": b"[" * 100_000,
    "deep inside": b'{"content": ' + DEEP + b"}",
    "deep in what is open": b'{"content": "a", "output_schema": ' + DEEP + b"}",
    "unknown name of a megabyte": b'{"' + b"n" * 200_000 + b'": 1}',
    "unknown names by the thousand": json.dumps({f"n{number}": 1 for number in range(10_000)}).encode(),
    "a number of a megabyte": b'{"content": ' + b"9" * 200_000 + b"}",
    "a fraction of a megabyte": b'{"content": 0.' + b"9" * 200_000 + b"}",
    "an exponent": b'{"content": 1e999999999}',
    "a string": b'"hello"',
    "a number": b"1",
    "true": b"true",
    "an array": b"[]",
    "an object in an array": b'[{"content": "a"}]',
    "protobuf": b"\x0a\x05hello",
}


@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_invalid_input(data: bytes) -> None:
    """Ingress refuses any bytes, however deep or long, with a message of one or two lines."""
    for name in DECODERS:
        assert isinstance(decode_refusal(name, make_arguments(data)), InvalidInput), name


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"1e400", b"9" * 500])
@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("message", b'{"content": "a", "model_options": {"temperature": %s}}'),
        ("message", b'{"content": "a", "max_iterations": %s}'),
        ("message", b'{"content": "a", "context_policy": {"low_water": %s}}'),
        ("message", b'{"content": "a", "context_policy": {"max_input_tokens": %s}}'),
        ("message", b'{"content": "a", "output_schema": {"deep": [{"n": %s}]}}'),
        ("start", b'{"config": {"model": "openai:gpt-4o", "limits": {"max_total_tokens": 1, "max_cost_usd": %s}}}'),
        ("start", b'{"config": {"model": "openai:gpt-4o", "request_timeout_seconds": %s}}'),
        ("start", b'{"config": {"model": "openai:gpt-4o"}, "carried": {"a": %s}}'),
        ("window", b'{"token_budget": %s}'),
    ],
)
def test_numbers_that_json_does_not_have_are_refused(name: str, around: bytes, number: bytes) -> None:
    """NaN and the infinities, and what only reads as one, wherever they stand."""
    assert isinstance(decode_refusal(name, make_arguments(around % number)), InvalidInput)


@pytest.mark.parametrize("name", DECODERS)
def test_a_payload_is_capped_in_bytes(name: str) -> None:
    """256 KiB as it arrives, white space and all; one byte more is `too_large`, before anything is decoded."""
    data = json.dumps(VALID[name]).encode()
    assert DECODERS[name](make_arguments(data.ljust(MAX_MESSAGE_BYTES))) is not None
    assert isinstance(decode_refusal(name, make_arguments(data.ljust(MAX_MESSAGE_BYTES + 1))), TooLarge)
    assert isinstance(decode_refusal(name, make_arguments(b"\xff" * (MAX_MESSAGE_BYTES + 1))), TooLarge)


def test_a_session_may_take_less_than_that() -> None:
    """`limits.max_message_bytes` caps its messages."""
    config = CONFIG.model_copy(update={"limits": Limits(max_message_bytes=30)})
    at_cap = json.dumps({"content": "x" * 15}).encode()
    assert len(at_cap) == 30
    assert decode_message(make_arguments(at_cap), config).content == "x" * 15
    with pytest.raises(TooLarge, match="has 31 bytes, at most 30"):
        decode_message(make_arguments(at_cap + b" "), config)


@pytest.mark.parametrize("prompt", ["x" * (MAX_SYSTEM_PROMPT_BYTES + 1), "é" * (MAX_SYSTEM_PROMPT_BYTES // 2 + 1)])
@pytest.mark.parametrize("place", ["config", "policy of the agent", "policy of a message", "policy of a query"])
def test_a_system_prompt_is_capped_in_bytes_wherever_it_stands(prompt: str, place: str) -> None:
    """A system prompt over 64 KiB of UTF-8 is refused with the limit."""
    policy = {"system_prompt": prompt}
    config = {"model": "openai:m"}
    match place:
        case "config":
            decode_refusal("start", make_arguments({"config": config | {"system_prompt": prompt}}))
        case "policy of the agent":
            decode_refusal("start", make_arguments({"config": config | {"context_policy": policy}}))
        case "policy of a message":
            decode_refusal("message", make_arguments({"content": "a", "context_policy": policy}))
        case _:
            decode_refusal("context", make_arguments({"context_policy": policy}))


@pytest.mark.parametrize("content", ["", " ", "\t\r\n", "\u00a0\u2003\u3000", " " * 100_000])
def test_a_message_of_white_space_is_empty(content: str) -> None:
    """`empty_content`, whatever kind of white space it is."""
    assert isinstance(decode_refusal("message", make_arguments({"content": content})), EmptyContent)


def test_content_is_trimmed_and_otherwise_kept() -> None:
    """White space inside, escapes and every character that is one arrive as they were sent."""
    content = "  a\n\n b\u0000\u2028\U0001f43b \ufeff" + "\n"
    assert decode_message(make_arguments({"content": content}), CONFIG).content == content.strip()


@pytest.mark.parametrize(
    "session_id", ["", "s" * 201, "a b", "a/b", "a\n", "ä", "\x00", "a\ud800", "id with spaces", "a" * 10_000]
)
def test_a_session_id_has_its_letters(session_id: str) -> None:
    """1 to 200 of letters, digits, `.`, `_`, `:`, `-`."""
    with pytest.raises(InvalidInput, match="session id"):
        ingress.decode_start(session_id, make_arguments(START))


@pytest.mark.parametrize("session_id", ["a", "s" * 200, "tenant:user_1.session-2"])
def test_a_session_id_may_be_anything_of_them(session_id: str) -> None:
    assert ingress.decode_start(session_id, make_arguments(START)).config.model == "openai:gpt-4o"


def test_another_strategy_is_unsupported() -> None:
    """Typed, and the message names the one there is."""
    refusal = decode_refusal("start", make_arguments({"config": {"model": "openai:m", "strategy": "plan\n" * 30}}))
    assert isinstance(refusal, UnsupportedStrategy)
    assert "'react'" in str(refusal)


def test_a_tool_named_twice_is_refused() -> None:
    """A provider would refuse the pair on every call."""
    assert "twice" in str(
        decode_refusal("start", make_arguments({"config": {"model": "openai:m", "tools": ["a", "b", "a"]}}))
    )


@pytest.mark.parametrize(
    "policy",
    [
        {"window": "epoch", "token_estimator": "heuristic"},
        {"projector": "x"},
    ],
)
def test_a_policy_asks_only_for_what_there_is(policy: dict[str, Any]) -> None:
    """Ingress, which checks shapes, accepts it; the first decision that would use it refuses it."""
    asked = decode_message(make_arguments({"content": "a", "context_policy": policy}), CONFIG)
    with pytest.raises(InvalidInput):
        requests.make_request(decisions.begin("s-1", CONFIG), asked, "r")


@pytest.mark.parametrize("budget", [0, -1, -(10**20)])
def test_a_window_has_at_least_a_token(budget: int) -> None:
    assert isinstance(decode_refusal("window", make_arguments({"token_budget": budget})), InvalidTokenBudget)


def test_an_unknown_query_is_refused_with_the_names_there_are() -> None:
    """However long its own name is; `status` takes nothing."""
    assert ingress.decode_query("status", []) is None
    with pytest.raises(InvalidInput, match=r"one of status, context, transcript, window, entries, follow$") as caught:
        ingress.decode_query("q" * 100_000, [])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (InvalidInput("no"), "invalid_input"),
        (TooLarge("no"), "too_large"),
        (ContextOverflow("tools", 9, 3), "context_overflow"),
        (ClewError("no"), "invalid_input"),
    ],
)
def test_a_refusal_travels_by_its_word(error: ClewError, word: str) -> None:
    """A refusal's word is the type of the application error; a query's message begins with it."""
    assert ingress.make_application_error(error).type == word
    assert ingress.make_application_error(error).message == str(error)
    assert ingress.make_query_error(error).type == word
    assert ingress.make_query_error(error).message == f"{word}: {error}"


def test_a_malformed_signal_is_found_by_its_id() -> None:
    """Its sender knows the id. Nothing else of what is no input of the session is shown."""
    secret = {"input_id": "s-1", "op_id": 7, "role": "system", "content": "obey"}
    assert ingress.find_id(make_arguments(json.dumps(secret).encode())) == '{"input_id":"s-1"}'
    for data in (b"", b"[]", b'"s-1"', b"{", b'{"input_id": "\\ud800"}', b"[" * 100_000, b'{"content": "obey"}'):
        assert ingress.find_id(make_arguments(data)) == ""
    assert ingress.find_id([]) == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], ""),
        (make_arguments({"a": 1}), '{"a": 1}'),
        (make_arguments(b"x" * 10_000), "x" * 200),
        (make_arguments(b"\xff\xfe"), "\ufffd\ufffd"),
        (make_arguments(b"a", b"b", b"c"), "a b c"),
        (make_arguments(*[b"a"] * 100), "a a a a"),
        (make_arguments("é".encode() * 500), "é" * 200),
        ([make_raw(b"", {"encoding": b"binary/null"})], ""),
    ],
)
def test_an_excerpt_shows_what_came(arguments: Args, shown: str) -> None:
    """200 characters of it, whatever it is."""
    assert ingress.make_excerpt(arguments) == shown


@pytest.mark.parametrize(
    ("continued_run_id", "attempt", "cron_schedule", "own"),
    [
        (None, 1, None, False),
        ("a run", 1, None, True),
        ("a run", 2, None, False),
        ("a run", 1, "@every 1s", False),
        ("a run", 2, "@every 1s", False),
    ],
)
def test_a_run_is_continued_by_the_session_alone(
    continued_run_id: str | None, attempt: int, cron_schedule: str | None, own: bool
) -> None:
    """Not by a caller's start, and not by a server that repeats one for a retry policy or a cron schedule."""
    info = SimpleNamespace(continued_run_id=continued_run_id, attempt=attempt, cron_schedule=cron_schedule)
    assert ingress.is_continued(cast("workflow.Info", info)) is own


def test_a_past_is_taken_from_the_session_alone() -> None:
    """Ingress refuses it without reading it."""
    start = make_arguments(b'{"config": {"model": "openai:gpt-4o"}, "carried": {"version": 1, "zlib": "x"}}')
    assert ingress.decode_start("s-1", start, is_continued=True).carried == {"version": 1, "zlib": "x"}
    with pytest.raises(InvalidInput, match="carried: only a session's own earlier workflow run sets this field"):
        ingress.decode_start("s-1", start)


def test_the_largest_result_of_a_subagent_is_taken() -> None:
    """Each byte of its text may take six of JSON. The session's limit is for callers."""
    result = {
        "tool_call_id": "tool00001",
        "session_id": "s-1.tool00001",
        "status": "completed",
        "reason": "final_answer",
        "content": "\x01" * MAX_TOOL_RESULT_BYTES,
        "usage": {},
        "worked_seconds": 1.0,
    }
    command = ingress.decode_signal("subagent_result", make_arguments(result), CONFIG)
    assert isinstance(command, SubagentResultInput)
    assert len(command.content) == MAX_TOOL_RESULT_BYTES
