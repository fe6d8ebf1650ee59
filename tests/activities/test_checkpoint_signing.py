"""Checkpoint tokens: a signed token is accepted, and every other one is refused with its own error."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import tool
from clew.contract import SessionConfig
from clew.contract.limits import MAX_TOKEN_BYTES
from clew.errors import (
    CheckpointUnavailable,
    Refusal,
    TokenExpired,
    TokenForeign,
    TokenKey,
    TokenLegacy,
    TokenMalformed,
    TokenMismatch,
    TokenSignature,
    TokenVersion,
)
from clew_activities.checkpoint_signing import VARIABLE, Keys, read_config, read_keys, sign_payload, verify_token
from clew_activities.model.model_table import choose_policy
from clew_activities.tools.mcp.mcp_tools import McpTools
from clew_activities.tools.registry import make_registry
from clew_workflows.session.checkpoints import (
    compute_fingerprint,
    encode_base64url,
    list_fingerprinted,
    make_op_id,
    make_signed_part,
)
from tests.support.examples import examples

NOW = 1_750_000_000
OLD, NEW = b"o" * 32, b"n" * 40
KEYS = Keys({"k1": OLD})
PAYLOAD: dict[str, Any] = {
    "v": 2,
    "session_id": "s-1",
    "context_ref": "default",
    "at_seq": 3,
    "context": {"messages": [{"role": "user", "content": "Grüße 🐻"}], "system_prompt": ""},
    "config": {"model": "openai:gpt-4o", "tools": ["add"]},
}


@tool
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def make_token(
    payload: dict[str, Any] = PAYLOAD, keys: Keys = KEYS, namespace: str = "default", seconds: int = 60
) -> str:
    text = json.dumps(payload)
    signed = sign_payload(text, fingerprint="f", namespace=namespace, keys=keys, now=NOW, expires_seconds=seconds)
    return f"{make_signed_part(text, signed)}.{signed.signature}"


def open_token(text: str, keys: Keys = KEYS, now: int | None = NOW) -> dict[str, Any]:
    return verify_token(text, keys, "default", now)


def forge_token(payload: Any, key: bytes = OLD, prefix: str = "rt2") -> str:
    """A token with whatever payload, signed as it should be."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    part = f"{prefix}.{encode_base64url(body)}"
    return f"{part}.{encode_base64url(hmac.digest(key, part.encode(), 'sha256'))}"


def test_a_token_is_taken_back_as_it_was_given() -> None:
    """With what the worker added; the payload has its keys in order and no white space."""
    stamp = {"namespace": "default", "fingerprint": "f", "iat": NOW, "exp": NOW + 60, "kid": "k1"}
    assert open_token(make_token()) == PAYLOAD | stamp
    version, body, signature = make_token().split(".")
    text = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    assert text == json.dumps(PAYLOAD | stamp, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert (version, len(signature)) == ("rt2", 43)
    assert make_token() == make_token()


def test_large_numbers_come_back_as_they_were() -> None:
    """Tools are called with ids beyond 2^53."""
    call = {"id": "tool00001", "name": "add", "arguments": {"id": 2**63 + 1, "share": 0.1}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "tool00001"},
    ]
    back = open_token(make_token(PAYLOAD | {"context": {"messages": messages}}))
    assert back["context"]["messages"] == messages


def test_a_newer_token_is_refused_by_its_version() -> None:
    """The message names both versions, of the token and of its payload."""
    newer = r"the checkpoint is of version 3, and this version of Clew reads 2: upgrade the worker"
    for token in (
        make_token().replace("rt2.", "rt3."),
        forge_token(PAYLOAD | {"v": 3, "kid": "k1"}, KEYS.by_kid["k1"]),
    ):
        with pytest.raises(TokenVersion, match=newer):
            open_token(token)


def test_a_token_has_no_more_fields() -> None:
    """What a reader ignored would be missing in the new session."""
    with pytest.raises(TokenMalformed, match="mood"):
        open_token(make_token(PAYLOAD | {"mood": "fine"}))


WHOLE = make_token()


def test_every_byte_counts() -> None:
    """A token with any changed character is refused with an error of its own."""
    for index, byte in enumerate(WHOLE):
        for other in {chr(ord(byte) ^ 1), chr(ord(byte) ^ 2), "A", "_", ".", "=", "\n"} - {byte}:
            changed = WHOLE[:index] + other + WHOLE[index + 1 :]
            with pytest.raises(Refusal) as refused:
                open_token(changed)
            assert refused.value.type.startswith("token_"), changed


@examples(300)
@given(
    st.one_of(
        st.text(max_size=200),
        st.builds(lambda cut: WHOLE[:cut], st.integers(0, len(WHOLE) - 1)),
        st.builds(lambda more: WHOLE + more, st.text(min_size=1, max_size=5)),
        st.builds(
            lambda at, more: WHOLE[:at] + more + WHOLE[at + 1 :], st.integers(0, len(WHOLE) - 1), st.text(max_size=3)
        ),
        st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists).map(forge_token),
        st.dictionaries(st.sampled_from([*PAYLOAD, "kid", "exp", "thread"]), st.integers() | st.text()).map(
            lambda fields: forge_token(PAYLOAD | {"kid": "k1"} | fields)
        ),
        st.binary(max_size=100).map(forge_token),
    )
)
def test_nothing_else_is_taken(text: str) -> None:
    """Any other text is refused, signed or not; no other error is raised."""
    if text != WHOLE:
        with pytest.raises(Refusal, match=r"\w"):
            open_token(text)


SIGNED = PAYLOAD | {"namespace": "default", "fingerprint": "f", "iat": NOW, "exp": NOW + 60, "kid": "k1"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", TokenMalformed),
        ("rt2", TokenMalformed),
        ("rt2..", TokenMalformed),
        ("rt2.e30", TokenMalformed),
        ("rt2.e30.e30.e30", TokenMalformed),
        ("eyJhbGciOiJIUzI1NiJ9.e30.abc", TokenMalformed),
        ("rt2.\u0661.e30", TokenMalformed),
        ("rt2." + "A" * MAX_TOKEN_BYTES + ".AAAA", TokenMalformed),
        (forge_token(b"[" * 100_000), TokenMalformed),
        (forge_token(["a list"]), TokenMalformed),
        (forge_token(SIGNED | {"at_seq": "3"}), TokenMalformed),
        (forge_token({name: value for name, value in SIGNED.items() if name != "config"}), TokenMalformed),
        (forge_token(SIGNED | {"more": 1}), TokenMalformed),
        ("rt1.e30.e30", TokenVersion),
        ("rt10.e30.e30", TokenVersion),
        (forge_token(SIGNED, prefix="rt3"), TokenVersion),
        (forge_token(SIGNED | {"v": 3}), TokenVersion),
        (forge_token(SIGNED | {"kid": "k2"}), TokenKey),
        (forge_token(SIGNED | {"kid": 1}), TokenKey),
        (forge_token({}), TokenKey),
        (forge_token(SIGNED, NEW), TokenSignature),
        (forge_token(SIGNED).rpartition(".")[0] + ".AAAA", TokenSignature),
        (forge_token(SIGNED | {"thread": []}), TokenLegacy),
        (forge_token(SIGNED | {"thread": None, "v": 1}), TokenLegacy),
        (make_token(namespace="another"), TokenForeign),
        (forge_token(SIGNED | {"exp": NOW}), TokenExpired),
    ],
)  # fmt: skip
def test_each_fault_has_its_own_word(text: str, error: type[Refusal]) -> None:
    with pytest.raises(Refusal) as refused:
        open_token(text)
    assert type(refused.value) is error


def test_a_token_expires() -> None:
    """At its time, to the second; once taken, its age does not matter to the steps that follow."""
    assert open_token(make_token(seconds=60), now=NOW + 59)["exp"] == NOW + 60
    with pytest.raises(TokenExpired):
        open_token(make_token(seconds=60), now=NOW + 60)
    assert open_token(make_token(seconds=60), now=None)["exp"] == NOW + 60


def test_keys_are_rotated() -> None:
    """The first key signs, every key verifies, and a key that is gone takes its tokens with it."""
    both = Keys({"k2": NEW, "k1": OLD})
    assert open_token(make_token(), both)["kid"] == "k1"
    assert open_token(make_token(keys=both), both)["kid"] == "k2"
    with pytest.raises(TokenKey):
        open_token(make_token(keys=both), KEYS)
    with pytest.raises(TokenSignature):
        open_token(make_token(), Keys({"k1": NEW}))


def test_without_a_key_nothing_is_signed_and_nothing_taken() -> None:
    """The refusal says which variable is to be set."""
    for attempt in (lambda: make_token(keys=Keys()), lambda: open_token(make_token(), Keys())):
        with pytest.raises(CheckpointUnavailable, match=VARIABLE):
            attempt()


def test_each_token_has_its_operation() -> None:
    """The same for every attempt, and an id of the contract."""
    assert make_op_id(WHOLE) == make_op_id(WHOLE) != make_op_id(make_token(seconds=61))
    assert len(make_op_id(WHOLE)) < 100


def test_keys_come_from_the_environment() -> None:
    """In their order; where the variable is not set there are none. No key is ever shown."""
    value = ",".join(f"{kid}:{base64.b64encode(key).decode()}" for kid, key in (("k2", NEW), ("k1", OLD)))
    keys = read_keys({VARIABLE: f" {value}, "})
    assert list(keys.by_kid.items()) == [("k2", NEW), ("k1", OLD)]
    assert keys.get_signing_key() == ("k2", NEW)
    assert repr(keys) == "Keys()"
    assert read_keys({}) == read_keys({VARIABLE: ""}) == Keys()


@pytest.mark.parametrize(
    "value",
    [
        "hunter2",
        ":aHVudGVyMg==",
        "k1:",
        "k1:hunter2",
        "k1:aHVudGVyMg==",
        "k 1:" + base64.b64encode(OLD).decode(),
        ",".join(["k1:" + base64.b64encode(OLD).decode()] * 2),
    ],
)
def test_keys_that_cannot_be_used_are_told_by_their_place(value: str) -> None:
    """The error names the key's index in the list, and never its value."""
    with pytest.raises(ValueError, match=rf"{VARIABLE}: key [12] ") as refused:
        read_keys({VARIABLE: value})
    assert "hunter2" not in str(refused.value)
    assert "aHVud" not in str(refused.value)


async def test_a_policy_that_was_the_models_own_is_found_again() -> None:
    """It is left open, so that it stays the model's own; a worker that would choose another refuses the token."""
    config = SessionConfig(model="openai:gpt-4", tools=("add",))
    policy, registry = choose_policy("openai:gpt-4"), make_registry({"add": add})
    was = compute_fingerprint(list_fingerprinted(config, policy, [add.spec]))
    payload = {"config": config.model_dump(mode="json", exclude_unset=True), "fingerprint": was}
    assert await read_config(payload, registry, McpTools()) == payload["config"]
    with pytest.raises(TokenMismatch):
        await read_config(payload | {"fingerprint": "another"}, registry, McpTools())
