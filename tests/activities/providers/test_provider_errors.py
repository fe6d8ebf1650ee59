import json
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from clew_activities.providers import provider_errors
from clew_activities.providers.provider_errors import (
    ErrorAnswer,
    ItemRefused,
    ProviderError,
    classify_event,
    classify_response,
    hide_look_alikes,
    parse_retry_after,
)
from clew_activities.providers.redaction import Redaction

NOW = 1_800_000_000.0


def make_openai_error(message: str, **fields: object) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None} | fields})


def make_anthropic_error(kind: str, message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (400, make_openai_error("Invalid value: 'x'."), "bad_request", False),
        (401, make_openai_error("Incorrect API key provided.", code="invalid_api_key"), "unauthorized", False),
        (402, "", "insufficient_quota", False),
        (403, make_openai_error("Country not supported"), "unauthorized", False),
        (404, '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}', "bad_request", False),
        (
            404,
            make_openai_error("The model `x` does not exist or you do not have access to it."),
            "unknown_model",
            False,
        ),
        (403, make_openai_error("Project has no access.", code="model_not_found"), "unknown_model", False),
        (404, make_anthropic_error("not_found_error", "model: claude-nothing"), "unknown_model", False),
        (404, '{"error":"model \\"x\\" not found, try pulling it first"}', "unknown_model", False),
        (400, '{"error":{"message":"Invalid model name passed in model=x"}}', "unknown_model", False),
        (408, "", "provider_unavailable", True),
        (409, "", "provider_unavailable", True),
        (413, make_anthropic_error("request_too_large", "Request exceeds the maximum size"), "bad_request", False),
        (422, '{"detail":[{"loc":["body"],"msg":"field required"}]}', "bad_request", False),
        (425, "", "provider_unavailable", True),
        (429, make_openai_error("Rate limit reached", code="rate_limit_exceeded"), "rate_limited", True),
        (429, make_openai_error("Request too large: reduce the length of the messages"), "rate_limited", True),
        (429, make_openai_error("You exceeded your quota", code="insufficient_quota"), "insufficient_quota", False),
        (500, "<html>oops</html>", "provider_unavailable", True),
        (503, '{"error":{"message":"Loading model","type":"unavailable_error"}}', "provider_unavailable", True),
        (529, make_anthropic_error("overloaded_error", "Overloaded"), "overloaded", True),
        (400, make_openai_error("Blocked", code="content_policy_violation"), "content_refused", False),
        (400, make_openai_error("Filtered", code="content_filter"), "content_refused", False),
        (418, "\ud800", "bad_request", False),
        (999, "[" * 100_000, "bad_request", False),
    ],
)
def test_status_and_body_give_a_type_and_a_posture(status: int, body: str, kind: str, retryable: bool) -> None:
    error = classify_response(ErrorAnswer(status=status, headers={}, body=body, at=NOW))
    assert (error.type, error.retryable, error.status) == (kind, retryable, status)
    assert error.message
    error.message.encode()


@pytest.mark.parametrize(
    ("status", "message", "fields", "details"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
         {"code": "context_length_exceeded"}, {"limit": 4096, "actual": 5000}),
        (400, "Your input exceeds the context window of this model.", {"code": "context_length_exceeded"}, {}),
        (400, "prompt is too long: 213462 tokens > 200000 maximum", {}, {"limit": 200000, "actual": 213462}),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input",
         {}, {"limit": 200000, "actual": 190000}),
        (400, "request (9031 tokens) exceeds the available context size (4096 tokens), try increasing it",
         {"type": "exceed_context_size_error", "n_prompt_tokens": 9031, "n_ctx": 4096},
         {"limit": 4096, "actual": 9031}),
        (500, "the request exceeds the available context size. try increasing the context size", {}, {}),
        (400, "This model's maximum context length is 8192 tokens. However, you requested 8204 tokens (12 in the "
         "messages, 8192 in the completion).", {"type": "BadRequestError"}, {"limit": 8192, "actual": 8204}),
        (400, "The decoder prompt (length 9000) is longer than the maximum model length of 4096.", {},
         {"limit": 4096, "actual": 9000}),
        (400, "Input length (4100) exceeds model's maximum context length (4096).", {},
         {"limit": 4096, "actual": 4100}),
        (400, "You passed 4097 input tokens and requested 100 output tokens. However, the model's context length is "
         "only 4096 tokens", {}, {"limit": 4096, "actual": 4097}),
        (400, "prompt too long; exceeded max context length by 3 tokens", {}, {}),
        (400, "the input length exceeds the context length", {}, {}),
        (400, "litellm.ContextWindowExceededError: maximum context length is 128000 tokens", {}, {"limit": 128000}),
        (400, f"prompt is too long: {'9' * 400} tokens > 200000 maximum", {}, {"limit": 200000}),
        (400, "request exceeds the available context size",
         {"type": "exceed_context_size_error", "n_prompt_tokens": 10**400, "n_ctx": 4096}, {"limit": 4096}),
    ],
)  # fmt: skip
def test_a_context_that_is_too_long_is_its_own_error_with_what_was_told(
    status: int, message: str, fields: dict[str, object], details: dict[str, int]
) -> None:
    error = classify_response(
        ErrorAnswer(status=status, headers={}, body=make_openai_error(message, **fields), at=NOW)
    )
    assert (error.type, error.retryable, error.details) == ("context_length_exceeded", False, details)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "invalid_encrypted_content", "message": "It could not be verified."}, "own_data"),
        ({"type": "error", "code": "image_parse_error", "message": "You uploaded an unsupported image."}, "media"),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "Could not process image"}},
            "media",
        ),
    ],
)
def test_a_refusal_of_one_item_may_come_in_the_stream(event: dict[str, Any], kind: str) -> None:
    error = classify_event(event)
    assert isinstance(error, ItemRefused)
    assert error.kind == kind


# What servers have answered, one a line, with the type that it means.
ANSWERS = [json.loads(line) for line in Path(__file__).with_name("errors.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer['status']} {answer['type']}")
def test_what_servers_say_in_their_own_words_is_the_type_that_they_mean(answer: dict[str, Any]) -> None:
    """What can never succeed is not tried for minutes, and what may succeed is tried again."""
    body = json.dumps(answer["body"])
    error = classify_response(ErrorAnswer(status=answer["status"], headers={}, body=body, at=NOW))
    assert error.type == answer["type"]
    assert getattr(error, "kind", None) == answer.get("refuses", "text" if error.type == "content_refused" else None)
    retryable = ("overloaded", "provider_unavailable", "rate_limited", "truncated_stream")
    assert error.retryable == (answer["type"] in retryable)


@pytest.mark.parametrize(
    ("message", "limit", "actual"),
    [
        ("The input token count (1200) exceeds the maximum number of tokens allowed (1000).", 1000, 1200),
        ("This model's maximum prompt length is 1000 but the request contains 1200 tokens.", 1000, 1200),
        ("Invalid request: Your request exceeded model token limit: 1000 (requested: 1200)", 1000, 1200),
        ("Range of input length should be [1, 1000]", 1000, None),
        ("Request too large for m on tokens per minute (TPM): Limit 1000, Requested 1200", 1000, 1200),
        ("Reduce the length of the messages. Current length is 1200 while limit is 1000", 1000, 1200),
        ("`inputs` tokens + `max_new_tokens` must be <= 1000. Given: 1200 `inputs` tokens", 1000, 1200),
        ("Request body too large for gpt-4o model. Max size: 1000 tokens.", 1000, None),
    ],
)
def test_the_lengths_are_read_in_each_servers_words(message: str, limit: int, actual: int | None) -> None:
    """The session learns from them how much fits."""
    error = classify_response(ErrorAnswer(status=400, headers={}, body=make_openai_error(message), at=NOW))
    assert error.details == {"limit": limit} | ({} if actual is None else {"actual": actual})


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, "bad_request"),
        ({"error": {"message": "boom", "type": "server_error", "code": 500}}, "provider_unavailable"),
        ({"error": {"message": "too many", "code": 429}}, "rate_limited"),
        ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, "bad_request"),
        ({"error": "prompt is too long"}, "context_length_exceeded"),
        ({"error": {}}, "provider_unavailable"),
        ({"error": {"message": "no", "type": "None", "code": "400"}}, "bad_request"),
        ({"error": {"message": "no", "type": "None", "code": "429"}}, "rate_limited"),
        ({"error": {"message": "invalid api key", "type": "authorized_error", "http_code": "401"}}, "unauthorized"),
        ({"error": {"message": "login fail", "code": 1004}}, "unauthorized"),
        ({"error": {"message": "insufficient balance", "code": 1008}}, "insufficient_quota"),
        ({"error": {"message": "invalid params", "code": 2013}}, "bad_request"),
        ({"error": {"message": "busy", "code": "3505"}}, "provider_unavailable"),
        ({"error": {"message": "filtered", "type": None, "code": "content_filter"}}, "content_refused"),
        # Servers between pass on what OpenAI's client says.
        ({"error": {"message": "Error code: 400 - {'error': 'content management policy'}"}}, "content_refused"),
        ({"error": {"message": "Error code: 400 - {'error': 'no'}"}}, "bad_request"),
        ({"error": {"message": "Error code: 429 - {'error': 'slower'}"}}, "rate_limited"),
        ({"error": {"message": "the log says Error code: 400"}}, "provider_unavailable"),
    ],
)
def test_an_error_inside_a_stream_goes_by_the_same_table(payload: dict[str, object], kind: str) -> None:
    assert classify_event(payload).type == kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "20", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "1e300"}, 86_400),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Mon, 99 Foo 2026 99:99:99 GMT"}, None),
    ],
)
def test_retry_after_is_in_seconds_however_it_was_told(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Rate limit reached for m: Limit 100, Used 99, Requested 2. Please try again in 7m12.5s.", 432.5),
        ("Please try again in 120ms.", 0.12),
        ("Please try again in 1h2m3s", 3723),
        ("Quota exceeded.\nPlease retry in 34.07s.", 34.07),
        ("No deployments available. Try again in 5 seconds.", 5),
        ("Please retry after 10 seconds", 10),
        ("Please try again in 2 minutes", 120),
        ("try again in 999999999h", 86_400),
        ("Please try again later", None),
        ("try again in " + "9" * 1900, None),
    ],
)
def test_the_wait_is_read_from_the_message_where_no_header_has_it(message: str, seconds: float | None) -> None:
    body = make_openai_error(message)
    error = classify_response(ErrorAnswer(status=429, headers={}, body=body, at=NOW))
    assert error.retry_after == (None if seconds is None else pytest.approx(seconds))
    header = classify_response(ErrorAnswer(status=429, headers={"retry-after": "1"}, body=body, at=NOW))
    assert header.retry_after == 1


def test_the_wait_is_read_from_googles_details() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}, None, {"retryDelay": 5}]
    body = json.dumps([{"error": {"code": 429, "message": "slow down", "details": details}}])
    assert classify_response(ErrorAnswer(status=429, headers={}, body=body, at=NOW)).retry_after == 34.5


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("Incorrect API key provided: sk-proj-ab*****yz.", "Incorrect API key provided: [redacted]"),
        ("sent 'Bearer abcdefgh'", "sent 'Bearer [redacted]'"),
        ("sent Bearer abcdefgh", "sent Bearer [redacted]"),
        ("a task-based risk-free plan", "a task-based risk-free plan"),
    ],
)
def test_what_looks_like_a_key_is_not_in_a_message(text: str, safe: str) -> None:
    assert hide_look_alikes(text) == safe


def test_a_message_is_capped_and_holds_no_part_of_a_key_that_the_cap_cuts() -> None:
    error = provider_errors.BadRequest("x" * 1995 + "hunter2hunter2")
    error.redact(Redaction(["hunter2hunter2"]))
    assert error.message == str(error) == "x" * 1995 + "[reda"


def test_a_sealed_error_has_no_secret_in_its_details_and_no_error_behind_it() -> None:
    """Temporal's failures hold the messages of the whole chain."""
    error = provider_errors.BadRequest("no", details={"got": ["hunter2hunter2"]})
    try:
        raise error from ValueError("hunter2hunter2")
    except provider_errors.BadRequest:
        error.redact(Redaction(["hunter2hunter2"]))
    assert (error.details, error.__cause__, error.__context__) == ({"got": ["[redacted]"]}, None, None)


def test_every_type_of_error_has_one_posture_and_no_two_names() -> None:
    leaves = [leaf for branch in ProviderError.__subclasses__() for leaf in branch.__subclasses__()]
    assert sorted(leaf.type for leaf in leaves) == sorted(
        ["bad_request", "content_refused", "context_length_exceeded", "empty_reply", "empty_reply",
         "insufficient_quota", "overloaded", "provider_unavailable", "rate_limited", "truncated_stream",
         "unauthorized", "unknown_model", "unsupported_content"]
    )  # fmt: skip
