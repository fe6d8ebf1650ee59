"""Sources and calls of the provider's own tools in the answers of servers of Chat Completions."""

from __future__ import annotations

from typing import Any

import pytest

from clew_activities.providers.dialects import DIALECTS
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.reply import (
    CALL_TEXT_LIMIT,
    MAX_CITATIONS,
    MAX_PROVIDER_CALLS,
    MAX_SOURCES,
    QUOTE_LIMIT,
    AnswerDecoder,
    RedactedDecoder,
)
from tests.support.provider_server import decode, make_chunk, make_request

TEXT = "Tea is grown in Assam."
URL = "https://tea.example/assam"


def annotate(url: object = URL, **fields: Any) -> dict[str, Any]:
    """Make an annotation as OpenAI's search models send it."""
    return {"type": "url_citation", "url_citation": {"url": url, **fields}}


def test_annotations_of_a_stream_and_of_a_completion_are_citations() -> None:
    """With the page, its title, its words, and the part of the text."""
    annotations = [annotate(title="Assam", start_index=0, end_index=22, content="Assam grows tea.")]
    expected = ({"url": URL, "title": "Assam", "quote": "Assam grows tea.", "start": 0, "end": 22},)
    streamed = [make_chunk(content=TEXT), make_chunk(annotations=annotations), make_chunk("stop"), "[DONE]"]
    assert decode(OpenAIDecoder(), streamed).citations == expected
    message = {"role": "assistant", "content": TEXT, "annotations": annotations}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert decode(OpenAIDecoder(), [completion, "[DONE]"]).citations == expected


def test_pages_listed_beside_the_choices_are_citations_once() -> None:
    """Perplexity and xAI repeat the list in each chunk; its titles come with the results of the search."""
    listed = {"citations": [URL, "https://b.example"], "search_results": [{"url": URL, "title": "Assam"}]}
    chunks = [make_chunk(content=TEXT) | listed, make_chunk("stop") | listed, "[DONE]"]
    assert decode(OpenAIDecoder(), chunks).citations == ({"url": URL, "title": "Assam"}, {"url": "https://b.example"})


def test_a_page_with_an_annotation_is_not_listed_again() -> None:
    """The annotation says more."""
    chunks = [make_chunk(content=TEXT, annotations=[annotate(title="A")]) | {"citations": [URL]}, "[DONE]"]
    assert decode(OpenAIDecoder(), chunks).citations == ({"url": URL, "title": "A"},)


def test_groqs_executed_tools_are_calls_of_the_provider() -> None:
    """In a stream the arguments come before the results; search, visit and Python have Clew's names."""
    results = {"results": [{"url": URL, "title": "Assam", "content": "Assam grows tea.", "score": 0.9}]}
    chunks = [
        make_chunk(executed_tools=[{"index": 0, "type": "search", "arguments": '{"query": "tea"}', "output": None}]),
        make_chunk(executed_tools=[{"index": 0, "type": "search", "arguments": "", "search_results": results}]),
        make_chunk(executed_tools=[{"index": 1, "type": "python", "arguments": '{"code": "1 + 1"}', "output": "2"}]),
        make_chunk(executed_tools=[{"index": 2, "type": "weigh", "arguments": '{"cups": 2}', "output": "heavy"}]),
        make_chunk("stop", content=TEXT),
        "[DONE]",
    ]
    assert decode(OpenAIDecoder(), chunks).provider_calls == (
        {"tool": "web_search", "input": "tea", "sources": [{"url": URL, "title": "Assam"}]},
        {"tool": "code_execution", "input": "1 + 1", "output": "2"},
        {"tool": "weigh", "input": '{"cups": 2}', "output": "heavy"},
    )


@pytest.mark.parametrize(
    "hostile",
    [
        make_chunk(annotations="x", executed_tools={"index": 0}),
        make_chunk(annotations=[None, 3, {"type": "url_citation"}, annotate(None), annotate([]), annotate("")]),
        make_chunk(annotations=[{"type": "file_citation", "file_id": "f"}], executed_tools=[None, "x"]),
        {**make_chunk(), "citations": [None, {}, {"url": 3}, []], "search_results": {"url": URL}},
        {**make_chunk(), "citations": URL, "search_results": 3},
    ],
)
def test_what_names_no_page_is_left_out(hostile: dict[str, Any]) -> None:
    """The reply has its text, and nothing else."""
    reply = decode(OpenAIDecoder(), [make_chunk(content=TEXT), hostile, "[DONE]"])
    assert (reply.content, reply.citations, reply.provider_calls) == (TEXT, (), ())


def test_sizes_are_capped() -> None:
    """The numbers of citations, calls and sources, and their texts; positions that are none are left out."""
    many = [annotate(f"https://{number}.example", content="x" * 9000) for number in range(MAX_CITATIONS + 9)]
    pages = [{"url": f"https://{number}.example"} for number in range(MAX_SOURCES + 9)]
    tools = [
        {"index": number, "type": "search", "arguments": "x" * 99_999, "search_results": {"results": pages}}
        for number in range(MAX_PROVIDER_CALLS + 9)
    ]
    reply = decode(OpenAIDecoder(), [make_chunk(content=TEXT, annotations=many, executed_tools=tools), "[DONE]"])
    assert (len(reply.citations), len(reply.provider_calls)) == (MAX_CITATIONS, MAX_PROVIDER_CALLS)
    assert len(reply.citations[0]["quote"]) <= QUOTE_LIMIT
    assert len(reply.provider_calls[0]["sources"]) == MAX_SOURCES
    assert len(reply.provider_calls[0]["input"]) <= CALL_TEXT_LIMIT
    wrong = annotate(start_index=-1, end_index=True)
    assert decode(OpenAIDecoder(), [make_chunk(content=TEXT, annotations=[wrong]), "[DONE]"]).citations == (
        {"url": URL},
    )


def test_every_chat_provider_reads_them() -> None:
    """Whatever its dialect: servers behind gateways send the fields of the models that they serve."""
    for name, dialect in DIALECTS.items():
        decoder = OpenAI(name, "http://127.0.0.1:1/v1", dialect).make_decoder(make_request())
        assert decode(decoder, [make_chunk("stop", content=TEXT, annotations=[annotate()]), "[DONE]"]).citations


def test_a_citation_loses_its_part_of_a_text_that_is_changed() -> None:
    """Thinking between tags is no part of it, an answer's value stands within an object, a secret is removed."""
    tagged = [
        make_chunk("stop", content=f"<think>Hm</think>{TEXT}", annotations=[annotate(start_index=17, end_index=39)])
    ]
    assert decode(OpenAIDecoder(), [*tagged, "[DONE]"]).citations == ({"url": URL},)
    events = [
        make_chunk("stop", content=f'{{"value": "{TEXT}"}}', annotations=[annotate(start_index=11, end_index=33)])
    ]
    wrapped = AnswerDecoder(OpenAIDecoder())
    assert decode(wrapped, [*events, "[DONE]"]).citations == ({"url": URL},)
    secret = [
        make_chunk("stop", content=f"sk-secret-key {TEXT}", annotations=[annotate(start_index=14, end_index=36)])
    ]
    redacted = decode(RedactedDecoder(OpenAIDecoder(), Redaction(["sk-secret-key"])), [*secret, "[DONE]"])
    assert "secret" not in redacted.content
    assert redacted.citations == ({"url": URL},)
    kept = decode(RedactedDecoder(OpenAIDecoder(), Redaction(["another-key"])), [*secret, "[DONE]"])
    assert kept.citations == ({"url": URL, "start": 14, "end": 36},)
