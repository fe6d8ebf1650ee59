import json
from typing import Any

import pytest
from google.genai import types

from clew_activities.providers.dialects import GOOGLE
from clew_activities.providers.encoders import ENCODERS, dump_body
from clew_activities.providers.fit_tools import fit_name
from clew_activities.providers.google.provider import Google, make_providers
from clew_activities.providers.google.schema import make_answer_schema
from clew_activities.providers.google.stream import GoogleDecoder
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import (
    BadRequest,
    ContentRefused,
    ContextLengthExceeded,
    EmptyReply,
    ErrorAnswer,
    InsufficientQuota,
    ItemRefused,
    OutputExhausted,
    Overloaded,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    TruncatedStream,
    Unauthorized,
    UnknownModel,
)
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.messages import Message
from clew_workflows.protocol import ModelReply
from tests.providers.gemini_api import GEMINI_2_5, GEMINI_3, KEY
from tests.providers.strict_server import Exchange, Sent
from tests.support.provider_server import ADD, HELLO, decode, make_call, make_request, make_result

OFFICIAL = Google("google", "https://generativelanguage.googleapis.com", api_key=KEY)
VERTEX_URL = "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/publishers/google"
VERTEX = Google("google", VERTEX_URL, access_token="ya29.token")
GEMINI, OLDER = "gemini-3-pro-preview", "gemini-2.5-flash"
DUMMY = "skip_thought_signature_validator"

CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    HELLO,
    {**make_call(a=1, b="ü"), "provider_data": {"provider": "anthropic", "blocks": [{"type": "thinking"}]}},
    make_result("3"),
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "And now?"},
]


def make_chunk(*parts: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Make a chunk of a stream, as the official package's type allows it."""
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **fields}
    chunk = {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}
    types.GenerateContentResponse.model_validate_json(json.dumps(chunk))
    return chunk


def make_function(name: str = "add", **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"a": 1}, **fields}}


def encode(*messages: Message, provider: Google = OFFICIAL, model: str = GEMINI, **options: Any) -> dict[str, Any]:
    return provider.encode(make_request(*messages, model=model, **options)).body


def encode_reply(message: Message, model: str = GEMINI, provider: Google = OFFICIAL) -> list[dict[str, Any]]:
    """Encode a reply of the model: the parts of its turn."""
    rest: list[Message] = [make_result("3", call["id"]) for call in message.get("tool_calls", ())]
    contents = encode(HELLO, message, *rest, model=model, provider=provider)["contents"]
    parts: list[dict[str, Any]] = contents[1]["parts"]
    return parts


def read(*chunks: Any, model: str = GEMINI) -> ModelReply:
    return decode(GoogleDecoder("google", model), chunks)


def keep(reply: ModelReply) -> Message:
    """Make the message of a reply, as a thread has it."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": f"tc_{number}", "name": call.name, "arguments": call.arguments}
            for number, call in enumerate(reply.tool_calls)
        ]
    if reply.provider_data:
        message["provider_data"] = reply.provider_data
    return message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "top_p": 0.9, "stop": ("END",), "seed": 7, "service_tier": "flex"},
        {"tools": [ADD], "tool_choice": "required", "reasoning_effort": "high"},
        {"tools": [ADD], "tool_choice": "add", "reasoning_effort": "minimal"},
        {"tools": [ADD], "tool_choice": "none", "output_schema": {"type": "object", "minProperties": 1}},
        {"output_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    ],
)
@pytest.mark.parametrize(("model", "rules"), [(GEMINI, GEMINI_3), (OLDER, GEMINI_2_5)])
def test_the_strict_server_takes_every_body(model: str, rules: Any, options: dict[str, Any]) -> None:
    """It checks the body against the official package's types."""
    call = OFFICIAL.encode(make_request(*CONVERSATION, model=model, **options))
    exchange = Exchange(call.body, call.headers, [Sent("", {"signed": []})])
    assert [refusal.message for rule in rules for refusal in rule(exchange)] == []
    assert call.path == f"/v1beta/models/{model}:streamGenerateContent?alt=sse"
    assert call.encoder == "google/1"


def test_results_are_one_users_turn_in_the_order_of_their_calls() -> None:
    both: Message = {
        "role": "assistant",
        "content": "Both.",
        "tool_calls": [
            {"id": "tc_1", "name": "add", "arguments": {"a": 1}},
            {"id": "tc_2", "name": "my tool", "arguments": {}},
        ],
    }
    stop: Message = {"role": "user", "content": "Stop!"}
    contents = encode(HELLO, both, make_result("", "tc_2"), make_result("3", "tc_1"), stop)["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    assert contents[2]["parts"] == [
        {"functionResponse": {"name": "add", "response": {"result": "3"}}},
        {"functionResponse": {"name": fit_name("my tool", GOOGLE.tools), "response": {"result": ""}}},
        {"text": "Stop!"},
    ]


def test_a_context_without_a_user_at_its_ends_gets_one() -> None:
    call = OFFICIAL.encode(make_request({"role": "assistant", "content": "I wait."}, model=GEMINI))
    assert [content["role"] for content in call.body["contents"]] == ["user", "model", "user"]
    assert call.fitting is not None
    assert call.fitting.added == 2


@pytest.mark.parametrize(("model", "signature"), [(GEMINI, DUMMY), ("gemini-flash-latest", DUMMY), (OLDER, None)])
def test_a_call_of_another_model_gets_the_documented_signature(model: str, signature: str | None) -> None:
    """Gemini 3 wants one at the first call of a step."""
    for message in (make_call(a=1), keep(read(make_chunk(make_function(), finish="STOP"), model="gemini-2.0-flash"))):
        assert encode_reply(message, model)[0].get("thoughtSignature") == signature


def test_parts_with_signatures_go_back_in_their_places() -> None:
    """To the model that has sent them; another one gets the text and the calls."""
    parts: list[dict[str, Any]] = [
        {"text": "I think", "thought": True, "thoughtSignature": "c2ln"},
        {"text": "First. "},
        {"text": "Second.", "thoughtSignature": "c2lnMg=="},
        {**make_function(id="f_1"), "thoughtSignature": "c2lnMw=="},
        make_function("more", id="f_2"),
    ]
    reply = read(*(make_chunk(part) for part in parts), make_chunk(finish="STOP"))
    assert (reply.content, reply.thinking, reply.stop_reason) == ("First. Second.", "I think", "tool_calls")
    message = keep(reply)
    assert encode_reply(message) == parts
    other = encode_reply(message, "gemini-3-flash-preview")
    assert other[0] == {"text": "First. Second."}
    assert [part.get("thoughtSignature") for part in other[1:]] == [DUMMY, None]
    results = encode(HELLO, message, make_result("3", "tc_0"), make_result("4", "tc_1"))["contents"][2]["parts"]
    assert [part["functionResponse"].get("id") for part in results] == ["f_1", "f_2"]


def test_the_last_signature_of_a_stream_goes_back_with_its_empty_text() -> None:
    reply = read(
        make_chunk({"text": "Hel"}),
        make_chunk({"text": "lo"}),
        make_chunk({"text": "", "thoughtSignature": "eA=="}, finish="STOP"),
    )
    assert encode_reply(keep(reply)) == [{"text": "Hello"}, {"text": "", "thoughtSignature": "eA=="}]


def test_a_text_that_was_changed_stands_before_the_calls() -> None:
    reply = read(
        make_chunk({"text": "Secret"}, {**make_function(), "thoughtSignature": "eA=="}, {"text": "!"}, finish="STOP")
    )
    message: Message = {**keep(reply), "content": "[redacted]!"}
    assert encode_reply(message) == [{"text": "[redacted]!"}, {**make_function(), "thoughtSignature": "eA=="}]


def test_a_plain_reply_has_nothing_to_go_back() -> None:
    assert read(make_chunk({"text": "Hi"}, make_function(), finish="STOP")).provider_data is None


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        (GEMINI, "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.1-pro-preview", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3.8-flash", "max", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3.5-flash-lite", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        (OLDER, "low", {"thinkingBudget": 1024, "includeThoughts": True}),
        (OLDER, "high", {"thinkingBudget": 2048, "includeThoughts": True}),
        (OLDER, "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", None),
        ("gemini-2.0-flash", "high", None),
        (GEMINI, None, None),
    ],
)
def test_the_effort_is_what_the_models_generation_takes(
    model: str, effort: str | None, config: dict[str, Any] | None
) -> None:
    """A budget is at most half of the reply's tokens."""
    call = OFFICIAL.encode(make_request(model=model, reasoning_effort=effort))
    assert call.body["generationConfig"].get("thinkingConfig") == config
    assert call.fitting is not None
    assert (call.fitting.options.get("reasoning_effort") == "left out") == (effort is not None and config is None)


def test_options_that_the_api_does_not_take_are_left_out() -> None:
    call = OFFICIAL.encode(make_request(model=GEMINI, seed=2**40, verbosity="low", service_tier="default"))
    assert call.fitting is not None
    assert call.fitting.options == dict.fromkeys(("seed", "verbosity", "service_tier"), "left out")


def test_own_fields_are_merged_and_those_of_clew_are_refused() -> None:
    own = {"generationConfig": {"topK": 3}, "safetySettings": []}
    body = encode(provider_options={"google": own}, temperature=1.0)
    assert body["generationConfig"] == {"maxOutputTokens": 4096, "temperature": 1.0, "topK": 3}
    assert body["safetySettings"] == []
    refusals: list[dict[str, Any]] = [
        {"contents": []},
        {"tool_config": {}},
        {"generationConfig": {"candidateCount": 2}},
    ]
    for refused in refusals:
        with pytest.raises(BadRequest):
            encode(provider_options={"google": refused})


def make_tool_request(model: str, **fields: Any) -> ModelRequest:
    own = ("web_search", "web_fetch", "code_execution")
    options = ModelOptions(max_output_tokens=100)
    return ModelRequest(model=model, messages=[HELLO], options=options, provider_tools=own, **fields)


def test_gemini_3_takes_both_kinds_of_tools_and_older_models_those_of_the_session() -> None:
    newer = OFFICIAL.encode(make_tool_request(GEMINI, tools=[ADD]))
    assert [next(iter(tool)) for tool in newer.body["tools"]] == [
        *("functionDeclarations", "googleSearch", "urlContext", "codeExecution"),
    ]
    assert newer.body["toolConfig"] == {"includeServerSideToolInvocations": True}
    for provider, model in ((OFFICIAL, OLDER), (VERTEX, GEMINI)):
        call = provider.encode(make_tool_request(model, tools=[ADD]))
        assert [list(tool) for tool in call.body["tools"]] == [["functionDeclarations"]]
        assert call.fitting is not None
        assert set(call.fitting.tools_left_out) == {"web_search", "web_fetch", "code_execution"}
    alone = OFFICIAL.encode(make_tool_request(OLDER, tools=[]))
    assert alone.body["tools"] == [{"googleSearch": {}}, {"urlContext": {}}, {"codeExecution": {}}]
    assert "toolConfig" not in alone.body


def test_an_answers_schema_stands_in_the_prompt_where_tools_exclude_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}}
    older = encode(tools=[ADD], output_schema=schema, model=OLDER)
    assert "responseMimeType" not in older["generationConfig"]
    assert "minLength" in older["systemInstruction"]["parts"][0]["text"]
    newer = encode(tools=[ADD], output_schema=schema)
    assert newer["generationConfig"]["responseJsonSchema"] == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
    }
    assert "minLength" in newer["systemInstruction"]["parts"][0]["text"]


@pytest.mark.parametrize(
    ("schema", "fitted", "is_whole"),
    [
        ({"type": "object", "default": {}}, {"type": "object"}, True),
        ({"const": 2}, {"enum": [2], "type": "integer"}, True),
        ({"const": True}, {"type": "boolean"}, False),
        (
            {"$ref": "#/definitions/A", "definitions": {"A": {"type": "string"}}},
            {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}},
            True,
        ),
        ({"$ref": "#/$defs/A", "title": "x", "$defs": {"A": {}}}, {"$ref": "#/$defs/A", "$defs": {"A": {}}}, False),
        ({"$ref": "#/properties/a"}, None, False),
        ({"$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}, "items": {"$ref": "#/$defs/A"}}, None, False),
    ],
)
def test_an_answers_schema_keeps_what_the_api_takes(schema: Any, fitted: Any, *, is_whole: bool) -> None:
    assert make_answer_schema(schema) == (fitted, is_whole)


def test_usage_counts_thoughts_and_results_of_tools() -> None:
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 20,
        "thoughtsTokenCount": 7,
        "candidatesTokenCount": 5,
        "totalTokenCount": 132,
    }
    usage = read(make_chunk({"text": "x"}, finish="STOP") | {"usageMetadata": counts}).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (120, 12, 60)
    del counts["candidatesTokenCount"]
    assert read(make_chunk({"text": "x"}, finish="STOP") | {"usageMetadata": counts}).usage.output_tokens == 12


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        ("SAFETY", ContentRefused),
        ("RECITATION", ContentRefused),
        ("PROHIBITED_CONTENT", ContentRefused),
        ("IMAGE_SAFETY", ContentRefused),
        ("MALFORMED_FUNCTION_CALL", TruncatedStream),
        ("UNEXPECTED_TOOL_CALL", TruncatedStream),
        ("TOO_MANY_TOOL_CALLS", TruncatedStream),
        ("MISSING_THOUGHT_SIGNATURE", BadRequest),
        ("MAX_TOKENS", OutputExhausted),
        ("OTHER", EmptyReply),
        (None, TruncatedStream),
    ],
)
def test_a_reply_without_a_text_fails_with_its_reason(finish: str | None, error: type[ProviderError]) -> None:
    with pytest.raises(error) as caught:
        read(make_chunk(finish=finish))
    if error in (ContentRefused, BadRequest):
        assert finish is not None
        assert finish in caught.value.message


def test_a_blocked_prompt_is_refused_with_its_reason() -> None:
    with pytest.raises(ContentRefused, match="BLOCKLIST"):
        read({"promptFeedback": {"blockReason": "BLOCKLIST"}})


def test_a_reply_at_its_limit_keeps_its_text() -> None:
    reply = read(make_chunk({"text": "Once"}), make_chunk(finish="MAX_TOKENS"))
    assert (reply.content, reply.stop_reason) == ("Once", "length")


def test_a_list_of_chunks_is_a_reply() -> None:
    """Servers without `alt=sse` send one."""
    assert read(json.dumps([make_chunk({"text": "Hi"}), make_chunk(finish="STOP")])).content == "Hi"


def test_searches_and_what_the_text_has_from_them_are_kept() -> None:
    """The API counts bytes, the thread characters."""
    text = "Zürich is large. 😀 It is."
    grounding = {
        "webSearchQueries": ["Zürich", "large"],
        "groundingChunks": [
            {"web": {"uri": "https://a.example", "title": "A"}},
            {"web": {"uri": "https://b.example"}},
        ],
        "groundingSupports": [
            {"segment": {"endIndex": 17, "text": "Zürich is large."}, "groundingChunkIndices": [0, 1]},
            {"segment": {"startIndex": 23, "endIndex": 29, "text": "It is."}, "groundingChunkIndices": [1]},
            {"segment": {"startIndex": 500, "endIndex": 900}, "groundingChunkIndices": [0, 7]},
        ],
    }
    reply = read(make_chunk({"text": text}), make_chunk(finish="STOP", groundingMetadata=grounding))
    assert reply.provider_calls == (
        {
            "tool": "web_search",
            "input": "Zürich",
            "sources": [{"url": "https://a.example", "title": "A"}, {"url": "https://b.example"}],
        },
        {"tool": "web_search", "input": "large"},
    )
    cited = [(each["url"], text[each["start"] : each["end"]]) for each in reply.citations if "start" in each]
    assert cited == [
        ("https://a.example", "Zürich is large."),
        ("https://b.example", "Zürich is large."),
        ("https://b.example", "It is."),
    ]
    assert [each for each in reply.citations if "start" not in each] == [{"url": "https://a.example", "title": "A"}]


def test_pages_that_were_read_are_kept() -> None:
    pages = [
        {"retrievedUrl": "https://a.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"},
        {"retrievedUrl": "https://b.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_PAYWALL"},
    ]
    calls = read(make_chunk({"text": "x"}, finish="STOP", urlContextMetadata={"urlMetadata": pages})).provider_calls
    assert [(call["tool"], call["input"], call.get("error")) for call in calls] == [
        ("web_fetch", "https://a.example", None),
        ("web_fetch", "https://b.example", "URL_RETRIEVAL_STATUS_PAYWALL"),
    ]


def test_code_that_was_run_is_kept_and_goes_back() -> None:
    parts: list[dict[str, Any]] = [
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": "eA=="},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}},
        {"executableCode": {"language": "PYTHON", "code": "1/0"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "ZeroDivisionError"}},
    ]
    reply = read(*(make_chunk(part) for part in parts), make_chunk({"text": "It is 1."}, finish="STOP"))
    assert reply.provider_calls == (
        {"tool": "code_execution", "input": "print(1)", "output": "1\n"},
        {"tool": "code_execution", "input": "1/0", "output": "ZeroDivisionError", "error": "OUTCOME_FAILED"},
    )
    assert encode_reply(keep(reply)) == [*parts, {"text": "It is 1."}]


def test_calls_of_the_apis_own_tools_go_back_while_both_kinds_are_declared() -> None:
    parts: list[dict[str, Any]] = [
        {
            "toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["q"]}, "id": "x"},
            "thoughtSignature": "eA==",
        },
        {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "response": {}, "id": "x"}},
        {"text": "Found.", "thoughtSignature": "eQ=="},
    ]
    reply = read(*(make_chunk(part) for part in parts), make_chunk(finish="STOP"))
    assert [(call["tool"], call["input"]) for call in reply.provider_calls] == [("web_search", "q")]
    message = keep(reply)
    request = make_tool_request(GEMINI, tools=[ADD])
    both = OFFICIAL.encode(ModelRequest(**{**vars(request), "messages": [HELLO, message, HELLO]}))
    assert both.body["contents"][1]["parts"] == parts
    assert encode_reply(message) == parts[2:]


def test_finishing_twice_gives_the_same_reply() -> None:
    decoder = GoogleDecoder()
    decoder.feed(
        "message", json.dumps(make_chunk({"text": "x"}, finish="STOP", groundingMetadata={"webSearchQueries": ["q"]}))
    )
    assert decoder.finish() == decoder.finish()


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, {"status": "INVALID_ARGUMENT", "message": "Function call is missing a thought_signature"}, ItemRefused),
        (
            400,
            {
                "message": "API key not valid. Please pass a valid API key.",
                "details": [{"reason": "API_KEY_INVALID"}],
            },
            Unauthorized,
        ),
        (
            400,
            {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."},
            ContextLengthExceeded,
        ),
        (403, {"status": "PERMISSION_DENIED", "message": "Method doesn't allow unregistered callers"}, Unauthorized),
        (404, {"message": "models/gemini-9 is not found for API version v1beta"}, UnknownModel),
        (429, {"message": "Resource exhausted", "details": [{"retryDelay": "34s"}]}, RateLimited),
        (
            429,
            {
                "message": "You exceeded your current quota",
                "details": [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}],
            },
            InsufficientQuota,
        ),
        (503, {"status": "UNAVAILABLE", "message": "The model is overloaded."}, ProviderUnavailable),
    ],
)
def test_errors_are_classified(status: int, error: dict[str, Any], expected: type[ProviderError]) -> None:
    """As the API sends them, and as the only item of a list."""
    payload = {"error": {"code": status, **error}}
    for body in (payload, [payload]):
        answer = ErrorAnswer(status=status, headers={}, body=json.dumps(body), at=0)
        made = OFFICIAL.read_error(answer)
        assert type(made) in (expected, Overloaded if expected is ProviderUnavailable else expected)
        assert made.retry_after == (34 if "34s" in json.dumps(error) else None)


def test_an_error_inside_a_stream_is_raised() -> None:
    with pytest.raises(ProviderError) as caught:
        read({"error": {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}})
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("environ", "url", "path", "headers"),
    [
        (
            {"GEMINI_API_KEY": "AIza-1", "GOOGLE_API_KEY": "AIza-2"},
            "https://generativelanguage.googleapis.com",
            "/v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse",
            {"x-goog-api-key": "AIza-2"},
        ),
        (
            {"GOOGLE_BASE_URL": f"{VERTEX_URL}/", "GOOGLE_ACCESS_TOKEN": "token"},
            VERTEX_URL,
            "/models/gemini-3-pro-preview:streamGenerateContent?alt=sse",
            {"authorization": "Bearer token"},
        ),
        (
            {"GOOGLE_BASE_URL": "http://localhost:1/v1", "GEMINI_API_KEY": "AIza-1"},
            "http://localhost:1/v1",
            "/models/gemini-3-pro-preview:streamGenerateContent?alt=sse",
            {"x-goog-api-key": "AIza-1"},
        ),
    ],
)
def test_the_environment_names_the_server(
    environ: dict[str, str], url: str, path: str, headers: dict[str, str]
) -> None:
    (provider,) = make_providers(environ)
    call = provider.encode(make_request(model=GEMINI))
    assert (provider.base_url, call.path, dict(call.headers)) == (url, path, headers)
    assert set(headers) <= set(provider.secret_headers)
    assert not any(secret in repr(provider) for secret in provider.secrets)


def test_a_location_of_vertex_without_its_path_is_refused() -> None:
    with pytest.raises(ValueError, match="publishers/google"):
        list(make_providers({"GOOGLE_BASE_URL": "https://us-central1-aiplatform.googleapis.com"}))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("models/gemini-3-pro", "models/gemini-3-pro"),
        ("tunedModels/x", "tunedModels/x"),
        ("../x?", "models/..%2Fx%3F"),
    ],
)
def test_a_model_cannot_leave_the_path(model: str, name: str) -> None:
    assert OFFICIAL.encode(make_request(model=model)).path == f"/v1beta/{name}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("provider", [OFFICIAL, VERTEX])
def test_an_audit_encodes_the_same_bytes_again(provider: Google) -> None:
    request = make_tool_request(GEMINI, tools=[ADD])
    call = provider.encode(request)
    again = ENCODERS["google"]("google", call.dialect).encode(request)
    assert dump_body(again.body) == dump_body(call.body)
