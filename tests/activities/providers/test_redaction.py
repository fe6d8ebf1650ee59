"""Secrets are redacted in every encoding, and ordinary text is unchanged."""

from __future__ import annotations

import base64
import json
import re
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers.redaction import (
    MARK,
    SHORTEST,
    GrowingText,
    Redaction,
    find_suspected_secrets,
    read_secrets,
)
from tests.support.provider_echoes import FORMS, find_leaks

KEY = "sk-ant-api03-" + string.ascii_letters[::-1] + "_-" + string.digits
KEYS = [KEY, "gw-0a1B2c3D4e5F6g7H", "c2VjcmV0K3NlY3JldC9zZWNyZXQ9PT0="]
REDACTION = Redaction(KEYS)

texts = st.lists(
    st.sampled_from(["a", " ", "\n", "\\", "%", "25", "&#", ";", "u00", "=", '"', "é", "\ud83d", "sk-"])
).map("".join)
keys = st.sampled_from(KEYS)
forms = st.sampled_from(list(FORMS.values()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", KEYS)
def test_a_secret_is_found_in_every_form(form: str, key: str) -> None:
    """The redaction removes all of a secret and keeps the text around it."""
    redacted = REDACTION.redact_text(f"before {FORMS[form](key)} after")
    assert not find_leaks(redacted, key)
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    assert MARK in redacted


@given(before=texts, after=texts, key=keys, form=forms)
def test_a_secret_is_found_in_any_surroundings(before: str, after: str, key: str, form: Callable[[str], str]) -> None:
    """Also in those that look like the beginning of an encoded character."""
    assert not find_leaks(REDACTION.redact_text(before + "." + form(key) + "." + after), key)


@given(text=texts | st.text())
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """Redaction changes no text that holds no secret."""
    assert REDACTION.redact_text(text) == text
    assert REDACTION.redact_value({"a": [text, {text: 1}]}) == {"a": [text, {text: 1}]}


@pytest.mark.parametrize(
    "text",
    [
        "sk-ant-api03- is how their keys begin, and sk-ant-api03-zyx how ours might",
        "a b\nc\\d %41 &amp; [truncated: 5 bytes]",
        "Bearer",
        KEY[:7],
        KEY[: len(KEY) // 2 - 1] + " is not all of it",
        KEY[1:],
        "x" * 1000 + "[truncated: 3 tool calls]",
    ],
)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    """The beginning of a key in the midst of a text is one that all keys of a provider share."""
    assert REDACTION.redact_text(text) == text


def test_the_beginning_of_a_secret_at_the_end_of_a_text_is_one() -> None:
    """A secret that a size limit truncated at the end of a text is redacted; the mark of the truncation stays."""
    for length in range(SHORTEST, len(KEY)):
        assert REDACTION.redact_text("x " + KEY[:length]) == f"x {MARK}"
        assert (
            REDACTION.redact_text("x " + KEY[:length] + "[truncated: 99 bytes]") == f"x {MARK}[truncated: 99 bytes]"
        )
        truncated = REDACTION.redact_text("x " + KEY[:length] + "[truncated: 9 bytes][truncated: 2 tool calls]")
        assert truncated.startswith(f"x {MARK}[truncated")


def test_the_first_half_of_a_secret_is_one() -> None:
    """A server may repeat only a part of a key: its first half, and the rest as far as it follows, is redacted."""
    for length in range(len(KEY) // 2, len(KEY)):
        assert REDACTION.redact_text(f"'{KEY[:length]}'") == f"'{MARK}'"
    assert Redaction(["local-api-key"]).redact_text("a local-api server") == "a local-api server"


def test_a_short_secret_is_not_looked_for() -> None:
    """It would be found in ordinary words: `ollama` is the key of many a server."""
    assert Redaction(["ollama", "x" * (SHORTEST - 1)]).redact_text("ollama has a key") == "ollama has a key"
    assert Redaction(["x" * SHORTEST]).redact_text("x" * SHORTEST) == MARK


def test_values_are_redacted_to_their_depth() -> None:
    """Keys and strings are redacted; values of other types stay."""
    value = {"a": [1, None, True, {f"x {KEY}": [KEY, "fine"]}], "b": 1.5}
    assert REDACTION.redact_value(value) == {"a": [1, None, True, {f"x {MARK}": [MARK, "fine"]}], "b": 1.5}


@given(before=texts, after=texts, key=keys, form=forms, data=st.data())
def test_a_growing_text_never_shows_a_part_of_a_secret(
    before: str, after: str, key: str, form: Callable[[str], str], data: st.DataObject
) -> None:
    """Wherever it is split, what is shown only grows, and in the end nothing else is missing."""
    text = before + "." + form(key) + "." + after + "."
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=30)))
    growing = GrowingText(REDACTION)
    shown = ""
    for cut in [*cuts, len(text)]:
        now = growing.show(text[:cut])
        assert now.startswith(shown)
        shown = now
    assert not find_leaks(shown, key)
    # The characters beside a secret in base64 may have been shown before it came, or come after it was.
    complete, shown = (
        re.sub(r"[\w+/-]*\[redacted][\w+/=-]*", MARK, part) for part in (REDACTION.redact_text(text), shown)
    )
    assert complete.startswith(shown)
    assert len(complete) - len(shown) < 40


@given(text=st.text(st.characters(codec="utf-8")), data=st.data())
def test_ordinary_text_is_shown_as_it_grows(text: str, data: st.DataObject) -> None:
    """All but an end that may begin a secret, however it is split."""
    text += " and so it ends."
    growing = GrowingText(Redaction([KEY]))
    for cut in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10))):
        assert text.startswith(growing.show(text[:cut]))
    assert growing.show(text) == text


PIECES = ["\\", "%", "%25", "\n", "\r\n  ", "&#1", "s", "sk-", KEY[:-1], "%73", "\\u0073", " "]


@pytest.mark.parametrize("piece", PIECES)
def test_every_character_is_looked_at_once(piece: str) -> None:
    """Only an end that may begin a secret is looked at again, in texts of any kind."""
    text, read = "", 0

    class Counting(Redaction):
        def settle(self, text: str) -> tuple[str, int]:
            nonlocal read
            read += len(text)
            return super().settle(text)

    growing = GrowingText(Counting(KEYS))
    for _ in range(200):
        text += piece * 50 + "."
        growing.show(text)
    assert read <= 2 * len(text) + 200 * 1000


def test_the_worker_s_other_secrets_are_known() -> None:
    """Temporal's, the store's, and the keys of checkpoints, in the environment's own form."""
    key = base64.b64encode(b"k" * 32).decode()
    secrets = read_secrets(
        {
            "TEMPORAL_API_KEY": " temporal ",
            "AWS_SECRET_ACCESS_KEY": "store",
            "CLEW_CHECKPOINT_KEYS": f"a:{key},b:{key}x",
        }
    )
    assert set(secrets) == {"temporal", "store", key, f"{key}x"}
    assert read_secrets({}) == ()


def test_nothing_shows_the_secrets_themselves() -> None:
    """The repr of a `Redaction` shows no secret."""
    assert KEY not in repr(REDACTION)
    assert Redaction().redact_text(KEY) == KEY
    assert Redaction().redact_value(json.loads(f'["{KEY}"]')) == [KEY]


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ('{"Authorization": "Bearer abcdefgh"}', '{"Authorization": "Bearer [redacted]"}'),
        ("header x-api-key: abcdefgh, next", "header x-api-key: [redacted], next"),
        ("X-Api-Key='abcdefgh'", "X-Api-Key='[redacted]'"),
        ("authorization: Basic YTpiOmM=", "authorization: Basic [redacted]"),
        ("x-other-key: abcdefgh", "x-other-key: abcdefgh"),
    ],
)
def test_the_value_of_a_secret_header_is_redacted_whatever_it_is(text: str, safe: str) -> None:
    """Providers name the headers; a server may quote a key that is not this worker's."""
    assert Redaction(headers=["authorization", "x-api-key"]).hide_headers(text) == safe
    assert Redaction().hide_headers(text) == text


def test_before_the_environment_is_understood_every_variable_that_sounds_secret_is() -> None:
    """The known ones, and those of providers that could not be made."""
    environ = {"MY_API_KEY": " one ", "A_TOKEN": "two", "DB_PASSWORD": "three", "KEYBOARD": "us", "EMPTY_SECRET": ""}
    assert find_suspected_secrets({**environ, "CLEW_CHECKPOINT_KEYS": "a:four"}) == ("four", "one", "two", "three")
