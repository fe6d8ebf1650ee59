import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers.sanitize import MAX_DEPTH, BoundedText, Budget, clean, parse_json, parse_object

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))


@given(ANY_TEXT)
def test_cleaned_text_is_always_encodable_and_clean_text_stays(text: str) -> None:
    clean(text).encode()
    assert clean(clean(text)) == clean(text)


@given(st.lists(ANY_TEXT), st.integers(0, 40))
def test_a_bounded_text_is_the_whole_text_or_is_truncated_with_a_mark_that_counts_what_is_missing(
    pieces: list[str], size: int
) -> None:
    full = clean("".join(pieces)).encode()
    text = BoundedText(Budget(size))
    for piece in pieces:
        text.add(piece)
    bounded = text.finish()
    if len(full) <= size:
        assert bounded.encode() == full
    else:
        head, _, mark = bounded.rpartition("[truncated: ")
        assert full.startswith(head.encode())
        assert int(mark.removesuffix(" bytes]")) == len(full) - len(head.encode())
        assert len(bounded.encode()) <= max(size, len("[truncated: 9999 bytes]"))


def test_a_character_split_over_two_pieces_is_one_character() -> None:
    text = BoundedText(Budget(100))
    for piece in ("a\ud83d", "\ude00b", "\ud83d"):
        text.add(piece)
    assert text.so_far == "a\U0001f600b"
    assert text.finish() == "a\U0001f600b\ufffd"


def test_texts_that_share_a_budget_keep_no_more_than_it_together() -> None:
    budget = Budget(10)
    texts = [BoundedText(budget) for _ in range(3)]
    for text in texts:
        text.add("abcd")
    assert [text.so_far for text in texts] == ["abcd", "abcd", "ab"]
    assert [text.overflowed for text in texts] == [False, False, True]


def _nest(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ('{"a": [1, 2.5, null, true]}', {"a": [1, 2.5, None, True]}),
        (' {"a": {}} ', {"a": {}}),
        (r'{"\ud800": ["\udfff", {"x": "\ud83d\ude00"}]}', {"\ufffd": ["\ufffd", {"x": "\U0001f600"}]}),
        ('{"a": 9007199254740993}', {"a": 9007199254740993}),
        ("[]", None),
        ("null", None),
        ('"{}"', None),
        ("{", None),
        ('{"a": NaN}', None),
        ('{"a": [-Infinity]}', None),
        ('{"a": 1e999}', None),
        ('{"a": 1' + "0" * 400 + "}", None),
        ('{"a": ' + "9" * 5000 + "}", None),
        (_nest(MAX_DEPTH), json.loads(_nest(MAX_DEPTH))),
        (_nest(MAX_DEPTH + 1), None),
        ('{"a":' + "[" * 100_000, None),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", None),
        ('{"a": "' + "x" * 1000 + '"}', None),
    ],
)
def test_arguments_are_a_clean_json_object_or_nothing(raw: str, value: object) -> None:
    assert parse_object(raw, 1000) == value


def test_parsing_never_raises() -> None:
    assert [parse_json(text) for text in ("", "{", "[" * 100_000, "9" * 5000)] == [None] * 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda values: st.lists(values) | st.dictionaries(ANY_TEXT, values),
)


@given(
    JSON.map(json.dumps)
    | st.sampled_from([_nest(300), '{"a": 1, "a": 2}', r'"\ud83d"', '"\ud83d"', "1E400", "-0", "0.1"])
)
def test_both_parsers_read_the_same(text: str) -> None:
    """Also lone surrogates, which halves of a character are, and what only Python calls JSON."""
    assert repr(parse_json(text)) == repr(json.loads(text))
