"""The errors of model providers, and the tables that classify them.

ProviderError
├── FinalError                    the same request would fail again
│   ├── BadRequest                bad_request
│   │   └── ItemRefused           the same type; one item of the request is refused, which `refusals` finds
│   ├── ContentRefused            content_refused
│   │   └── PromptRefused         the same type; a text of the request is refused, which `refusals` finds
│   ├── ContextLengthExceeded     context_length_exceeded; `details`: `limit` and `actual`, if the provider sent them
│   ├── MediaRefused              unsupported_content
│   ├── InsufficientQuota         insufficient_quota
│   ├── OutputExhausted           empty_reply: thinking used all output tokens
│   ├── Unauthorized              unauthorized
│   └── UnknownModel              unknown_model
└── RetryableError                the same request may succeed later
    ├── EmptyReply                empty_reply
    ├── Overloaded                overloaded
    ├── ProviderUnavailable       provider_unavailable
    │   └── Unreachable           the same type; no connection was made
    ├── RateLimited               rate_limited
    └── TruncatedStream           truncated_stream
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal

from clew_activities.providers.redaction import Redaction
from clew_activities.providers.sanitize import clean, parse_json

MESSAGE_LIMIT = 2000
"""Most characters of an error's message."""

# Characters of a raw message. It is redacted before it is truncated to MESSAGE_LIMIT.
_RAW_LIMIT = 32 * MESSAGE_LIMIT

# Characters at a message's start that are matched with the wordings. The rest may quote the request.
_WORDING_LIMIT = 2000

# Digits of a token count. Ignore larger numbers: no prompt is as long, and some JSON parsers lose their precision.
_MOST_DIGITS = 15
_MOST_TOKENS = 10**_MOST_DIGITS

# Reasons of an error that are looked at, and their characters.
_MOST_REASONS = 20
_LONGEST_REASON = 100

# Seconds. Longer than any model call, and valid as a Temporal duration.
_LONGEST_WAIT = 86_400.0


class ProviderError(Exception):
    """A model call failed.

    Attributes:
        message: At most 2000 characters.
        status: The HTTP status; None: no response arrived, or the error was inside a stream.
        retry_after: Seconds to wait before a retry, as the provider requests; None: it requests no wait.
        details: Further values, such as `limit` and `actual` of a context that is too long.
        type: The error's type in outcomes and in Temporal's failures.
        retryable: Whether Temporal's retry policy retries the call.
    """

    type: ClassVar[str] = "provider_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.status = status
        self.retry_after = retry_after
        self.details = dict(details or {})
        self._raw_message = message[:_RAW_LIMIT]
        self._set_message(self._raw_message)

    def surround(self, before: str, after: str = "") -> None:
        """Add a text before the message, and one after it."""
        self._raw_message = f"{before}{self._raw_message}{after}"[:_RAW_LIMIT]
        self._set_message(self._raw_message)

    def redact(self, redaction: Redaction) -> None:
        """Redact the message and the details, and drop the cause and the context.

        The causes' messages quote the response. Logs and Temporal's failures contain the complete chain of causes.
        """
        self._set_message(redaction.hide_headers(redaction.redact_text(self._raw_message)))
        self._raw_message = self.message
        self.details = redaction.redact_value(self.details)
        self.__cause__ = self.__context__ = None

    def _set_message(self, text: str) -> None:
        self.message = hide_look_alikes(text)[:MESSAGE_LIMIT]
        self.args = (self.message,)


class FinalError(ProviderError):
    """The same request would fail again."""


ItemKind = Literal["media", "own_data", "tool", "text"]
"""A kind of item of a request: images, recordings and files; the provider's own data; tools; what a message says."""


class BadRequest(FinalError):
    """The provider refused the request as invalid."""

    type = "bad_request"


class ItemRefused(BadRequest):
    """The provider refused one item of the request. Without it, the request may succeed.

    Attributes:
        kind: The kind of the item; None: the provider does not say.
        words: The provider's message, with the paths that it names. It may quote the request, and is not redacted.
    """

    def __init__(self, message: str, *, kind: ItemKind | None = None, words: str = "", **values: Any) -> None:
        super().__init__(message, **values)
        self.kind: ItemKind | None = kind
        self.words = words or message


class ContentRefused(FinalError):
    """The provider or the model declined because of the content."""

    type = "content_refused"


class PromptRefused(ContentRefused, ItemRefused):
    """The provider refused a text of the request because of its content, before the model replied."""

    def __init__(self, message: str, **values: Any) -> None:
        super().__init__(message, kind="text", **values)


class ContextLengthExceeded(FinalError):
    """The context is longer than the model's window."""

    type = "context_length_exceeded"


class MediaRefused(FinalError):
    """The model or the dialect does not take an image, a recording or a file, and the policy allows no marker."""

    type = "unsupported_content"


class InsufficientQuota(FinalError):
    """The account's quota is used up; waiting does not help."""

    type = "insufficient_quota"


class OutputExhausted(FinalError):
    """The reply reached its limit of tokens before any text; another attempt would too."""

    type = "empty_reply"


class Unauthorized(FinalError):
    """The key is missing, wrong, or lacks the permission."""

    type = "unauthorized"


class UnknownModel(FinalError):
    """Neither this worker nor the provider knows the model."""

    type = "unknown_model"


class RetryableError(ProviderError):
    """The same request may succeed later."""

    retryable = True


class EmptyReply(RetryableError):
    """A complete reply has neither text nor a tool call."""

    type = "empty_reply"


class Overloaded(RetryableError):
    """The provider is overloaded."""

    type = "overloaded"


class ProviderUnavailable(RetryableError):
    """The provider cannot be reached, or failed internally."""

    type = "provider_unavailable"


class Unreachable(ProviderUnavailable):
    """No connection to the provider can be made: it is down, or its address is wrong."""


class RateLimited(RetryableError):
    """The provider's limit of requests or tokens in a time is reached."""

    type = "rate_limited"


class TruncatedStream(RetryableError):
    """The reply ended too early."""

    type = "truncated_stream"


@dataclass(frozen=True)
class _Rule:
    """An error class and the conditions, any of which selects it.

    Attributes:
        error: The error class.
        words: Values of the body's `type` or `code`.
        statuses: HTTP statuses.
        wording: A pattern of the message.
        not_statuses: HTTP statuses for which the rule never applies.
    """

    error: type[ProviderError]
    words: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    wording: re.Pattern[str] | None = None
    not_statuses: frozenset[int] = frozenset()

    def matches(self, status: int, words: frozenset[str], message: str) -> bool:
        if status in self.not_statuses:
            return False
        return (
            bool(self.words & words)
            or status in self.statuses
            or (self.wording is not None and self.wording.search(message) is not None)
        )


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


def _match_any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Each server's messages about a prompt that is too long. `limit` is the model's context window, `actual` the prompt's
# length, both in tokens; some messages name neither.
_OVERFLOWS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Anthropic
        r"prompt is too long(?:: (?P<actual>\d+) tokens > (?P<limit>\d+) maximum)?",
        r"input length and `?max_tokens`? exceed context limit: (?P<actual>\d+) \+ \d+ > (?P<limit>\d+)",
        # OpenAI, vLLM, LiteLLM, OpenRouter
        r"maximum context length is (?P<limit>\d+) tokens?\b.{0,80}?"
        r"(?:requested(?: about)?|resulted in|contains at least|has|contains) (?P<actual>\d+)",
        r"maximum context length(?: is|:| of) (?P<limit>\d+)",
        r"exceeds the context window",
        # vLLM
        r"passed (?P<actual>\d+) input tokens.{0,120}?context length is only (?P<limit>\d+)",
        r"(?:prompt|input)\b.{0,40}?length (?:of )?\(?(?P<actual>\d+).{0,60}?"
        r"(?:longer than|exceeds|greater than).{0,60}?(?:model|context) length(?: of)? \(?(?P<limit>\d+)",
        r"is longer than the maximum model length of (?P<limit>\d+)",
        # llama.cpp
        r"request \((?P<actual>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)",
        r"exceeds the available context size",
        # Ollama
        r"prompt too long; exceeded max context length by \d+ tokens",
        r"(?:input|prompt)(?: length)? exceeds (?:the |maximum |max )*context length",
        # LM Studio, Mistral, Groq
        r"contains (?P<actual>\d+) tokens.{0,80}?too large for model with (?P<limit>\d+) maximum context length",
        r"greater than the context length",
        r"context length of only (?P<limit>\d+) tokens",
        r"current length is (?P<actual>\d+) while limit is (?P<limit>\d+)",
        r"reduce the length of the messages",
        # Gemini, Vertex AI
        r"input token count \(?(?P<actual>\d+)\)? exceeds the maximum number of tokens allowed \(?(?P<limit>\d+)",
        r"input token count is (?P<actual>\d+) but model only supports up to (?P<limit>\d+)",
        # xAI, Moonshot, DashScope, Z.ai, MiniMax
        r"maximum prompt length is (?P<limit>\d+) but the request contains (?P<actual>\d+)",
        r"exceeded model token limit:? (?P<limit>\d+)(?: \(requested: (?P<actual>\d+))?",
        r"range of input length should be \[\d+, (?P<limit>\d+)\]",
        r"prompt exceeds max length",
        r"context window exceeds limit",
        # OpenAI, whose limit of one text is in characters, and GitHub
        r"\.content'?: string too long",
        r"request body too large for .{0,80}?max size: (?P<limit>\d+) tokens",
        r"prompt token count of (?P<actual>\d+) exceeds the limit of (?P<limit>\d+)",
        # SGLang, TGI, vLLM
        r"input \((?P<actual>\d+) tokens\) is longer than the model's context length \((?P<limit>\d+)",
        r"must be <= (?P<limit>\d+)\. given: (?P<actual>\d+) `inputs` tokens",
        r"input prompt \((?P<actual>\d+) tokens\) is too long",
        # llama.cpp in the middle of a reply, Bedrock, LiteLLM
        r"context size has been exceeded",
        r"input is too long for requested model",
        r"ContextWindowExceededError",
        # Amazon's Nova
        r"number of input tokens exceeds maximum length",
    )
)

# A request that alone has more tokens than the account may send in a minute. It never succeeds, whatever the status.
_TOO_LARGE_FOR_A_MINUTE = re.compile(
    r"request too large for .{0,200}?limit (?P<limit>\d+), requested (?P<actual>\d+)", re.IGNORECASE
)

# Rules by body, for any status: servers use different statuses for the same error. They come before `_BY_STATUS`.
_BY_BODY: tuple[_Rule, ...] = (
    # DashScope has the same code for its limit of tokens in a minute.
    _Rule(RateLimited, wording=_match_any(r"allocated quota exceeded")),
    _Rule(
        InsufficientQuota,
        _words(
            "insufficient_quota billing_error billing_hard_limit_reached exceeded_current_quota_error",
            "budget_exceeded Arrearage",
        ),
        wording=_match_any(
            r"insufficient[ _](?:account )?(?:balance|credits?|funds)\b",
            r"credit balance is too low",
            r"reached your specified (?:\w+ )?usage limits",
            r"used all available credits",
            r"monthly spending limit",
            r"n't have any credits",
            r"budget has been exceeded",
            # A limit of some hours, of a week or of a key, at Z.ai, MiniMax, Ollama, Mistral and OpenRouter.
            r"usage limit (?:reached|exceeded)",
            r"reached your \w+ usage limit",
            r"limit exhausted",
            r"key limit exceeded",
            r"free tier of the model has been exhausted",
            r"余额不足",
        ),
        not_statuses=frozenset({401, 404}),
    ),
    # A quota of a day is not there again in minutes, unless the message names a time.
    _Rule(
        InsufficientQuota,
        wording=_match_any(r"per-?day", r"(?:tokens|requests) per day\b(?!.{0,400}try again in)"),
        not_statuses=frozenset(range(600)) - {429},
    ),
    _Rule(ContextLengthExceeded, wording=_TOO_LARGE_FOR_A_MINUTE),
    _Rule(
        ContextLengthExceeded,
        _words(
            "context_length_exceeded exceed_context_size_error model_max_prompt_tokens_exceeded",
            "tokens_limit_reached",
        ),
    ),
    # Messages of a 429 about tokens per minute use similar wording.
    *(_Rule(ContextLengthExceeded, wording=pattern, not_statuses=frozenset({429})) for pattern in _OVERFLOWS),
    # The server cannot read a call of the request; it says the same of one that the model wrote.
    _Rule(BadRequest, wording=_match_any(r"failed to parse tool call arguments as json")),
    # The server could not read what the model wrote: another attempt may.
    _Rule(
        TruncatedStream,
        frozenset({"tool_use_failed", "json_validate_failed"}),
        wording=_match_any(
            r"failed to call a function",
            r"tool call validation failed",
            r"but model called a tool",
            r"failed to generate json",
            r"failed to parse (?:input at pos|tool call)",
            r"error parsing tool call",
            # Ollama, llama.cpp, and vLLM with gpt-oss
            r"xml syntax error",
            r"expected element type <\w+> but have",
            r"\binvalid diff\b",
            r"unexpected tokens remaining in message header",
            r"unknown role: \S*<\|",
        ),
    ),
    # The template of the model refuses the messages, with 500 at llama.cpp: the same request would fail again.
    _Rule(
        BadRequest,
        wording=_match_any(
            r"\b(?:chat|prompt|jinja) template\b",
            r"\bjinja\b",
            r"raise_exception",
            r"roles must alternate",
            r"system (?:message|role)\b.{0,60}(?:not supported|at the beginning|must be)",
            r"no user query found",
        ),
        not_statuses=frozenset({401, 403, 404, 429}),
    ),
    _Rule(
        ContentRefused,
        _words(
            "content_filter content_policy_violation data_inspection_failed DataInspectionFailed",
            "bio_policy cyber_policy invalid_prompt misalignment_policy_violation",
        ),
        wording=_match_any(
            r"content exists risk",
            r"content management policy",
            r"content filtering policy",
            r"blocked by our content filters",
            r"considered high risk",
            r"violates? [\w' ]{0,30}\[?responsible ai (?:practices|policy)",
            r"content violates usage guidelines",
            r"ContentPolicyViolationError",
            r"inappropriate content",
            r"unsafe or sensitive content",
            r"(?:input|prompt) was flagged",
            r"new_sensitive",
            r"不安全或敏感",
        ),
        not_statuses=frozenset({401, 404, 429, *range(500, 600)}),
    ),
    _Rule(
        UnknownModel,
        frozenset(
            {"model_not_found", "DeploymentNotFound", "invalid_model", "model_decommissioned", "model_not_available"}
        ),
    ),
    _Rule(
        UnknownModel,
        wording=_match_any(
            r"^model: \S+$",
            r"\bmodels?\b.{0,200}\b(?:not found|not exist)\b",
            r"invalid model name",
            r"is not a valid model",
            r"\bunknown model\b",
            r"\bnot found the model\b",
            r"no endpoints found for\b",
            # Bedrock
            r"could not resolve the foundation model",
            r"model identifier is invalid",
            r"id or arn of an inference profile",
            r"model version has reached the end of its life",
        ),
        not_statuses=frozenset({401, 429, *range(500, 600)}),
    ),
    # Gemini and xAI answer 400.
    _Rule(
        Unauthorized,
        frozenset({"invalid_api_key", "API_KEY_INVALID"}),
        wording=_match_any(
            r"incorrect api key",
            r"api key (?:not valid|expired)",
            r"organization must be verified",
            r"location is not supported",
        ),
        not_statuses=frozenset({429, *range(500, 600)}),
    ),
    _Rule(
        Overloaded,
        frozenset({"engine_overloaded_error", "server_is_overloaded", "slow_down", "ModelNotReadyException"}),
        wording=_match_any(r"\boverloaded\b", r"\bover capacity\b"),
        not_statuses=frozenset(range(500)) - {429},
    ),
    # Bedrock answers 424 if a model fails.
    _Rule(ProviderUnavailable, frozenset({"ModelErrorException", "ModelStreamErrorException"})),
)

# What servers say of one item of a request. A message about a tool may quote the name of a file, and one about own
# data may speak of a file or a tool, so that these come first.
_ITEMS: tuple[tuple[ItemKind, re.Pattern[str]], ...] = (
    (
        "own_data",
        _match_any(
            r"encrypted[ _]content",
            r"thought[ _]?signature",
            r"\bsignature\b.{0,60}\b(?:thinking|reasoning|field required|invalid)",
            r"\b(?:invalid|missing|corrupted|expired)\b.{0,60}\bsignature\b",
            r"\bredacted_thinking\b",
            r"\bthinking\b.{0,40}\bblocks?\b",
            r"\breasoning[ _](?:content|details|text)\b",
            r"\bmessages\.\d+\.reasoning\b",
            r"\breasoningContent\b",
            r"\b(?:items? of type|type:?) '?reasoning\b",
            r"\breasoning item\b",
            r"\bitem (?:with id )?['\"]?(?:rs|msg|fc|ws|ci|ig)_\w+",
            r"\bid:? ['\"]?(?:rs|msg|fc|ws|ci|ig)_\w+",
        ),
    ),
    (
        "tool",
        _match_any(
            r"\binvalid_function_parameters\b",
            r"\bfunction_?declarations?\b",
            r"\bfunctionDeclarations?\b",
            r"\b(?:input_?schema|inputSchema|toolSpec|tool_?config)\b",
            r"\btools?[.\[]\W?\d",
            r"\bjson schema is invalid\b",
            r"\binvalid (?:json )?schema\b",
            r"\b(?:tool|function)s?\b.{0,20}\b(?:names?|schemas?|parameters|definitions?|declarations?)\b",
            r"\b(?:names?|schemas?|parameters)\b.{0,20}\b(?:for|of) (?:the )?(?:tool|function)\b",
            r"\b(?:tool_calls|tool_use|toolUse|function_?call)\W.{0,20}\bname\b",
        ),
    ),
    (
        "media",
        _match_any(
            r"\b\w*image_(?:parse|format|url|too|file|media|content)\w*\b",
            r"\binvalid_(?:base64|image|file|audio|document)\w*\b",
            r"\b(?:images?|image_url|input_image|pictures?|photos?)\b",
            r"\b(?:audio|input_audio|recordings?|videos?)\b",
            r"\b(?:pdfs?|documents?|input_file|attachments?|filename|file_data)\b",
            r"\b(?:the|your|this|a|of|process|parse|read|download|fetch|decode|invalid|uploaded) files?\b",
            r"\bfiles? (?:too|is|was|has|could|can|size|format|type|data|content|name)\b",
            r"\bfile\b.{0,80}\b(?:not found|not exist|expired)\b",
            r"\bfetch content from the provided URL\b",
            r"\b(?:mime|media)[ _]?types?\b",
            r"\b(?:base64|inline_?data|inlineData|fileData|multimodal|mtmd|bitmap)\b",
        ),
    ),
)

# A failure of a server with these words is the refusal of an item: the same request would fail again.
_BROKEN = _match_any(
    r"cannot identify image file",
    r"(?:failed|unable|not able) to (?:load|decode|process|parse|open|read|identify) (?:the |input |an )*"
    r"(?:image|audio|file|pdf|video|bitmap)",
    r"could not (?:load|decode|process|parse|open|read) (?:the |input |an )*(?:image|audio|file|pdf|video)",
    r"image file is truncated",
    r"broken data stream when reading image",
    r"unsupported content part type",
    r"invalid_encrypted_content",
    r"\bimage: unknown format",
    r"\billegal base64 data",
    r"\b(?:image|audio|video|file|multimodal) input is not supported",
)

# A file that the provider keeps and that is gone, which some say with 403 or 404.
_GONE = _match_any(r"\bfile:?\s.{0,80}\b(?:not found|not exist|expired)\b", r"\bfile not found: \S")

# A refusal for its content of what is no text: without it, the rest of the conversation may be taken.
_REFUSED_MEDIA = _match_any(
    r"\b(?:input|your|the|provided|uploaded) (?:\w+ )?(?:images?|pictures?|audio|videos?|files?|documents?)\b"
)

# What the model has written is refused, not what it was asked.
_REFUSED_OUTPUT = _match_any(
    r"^output\b", r"\boutput (?:blocked|data|text|content|new_sensitive)\b", r"\bgenerated content\b"
)

# Whether a model takes tools, images or options at all, is no matter of one item that others could stand for.
_NO_ITEM = _match_any(
    r"\b(?:does not|doesn't) support (?:tools?|function|thinking|system|streaming|structured)",
    r"\b(?:tools?|functions?|tool use|tool_choice) (?:is|are) not supported",
    r"^['\"`]?(?:temperature|top_p|top_k|max_\w*tokens|stop\w*|seed|reasoning_effort|service_tier|verbosity"
    r"|response_format|text|output_config|generation_?config|thinking|stream\w*)\b['\"`]?[.:]",
    r"\bunsupported (?:parameter|value): ['\"]?(?:temperature|top_p|max_\w*tokens|stop|seed|reasoning|verbosity)",
)
_OPTIONS = _words(
    "max_completion_tokens max_output_tokens max_tokens model reasoning.effort reasoning_effort",
    "response_format seed service_tier stop temperature text.format tool_choice top_p",
)

# Statuses of a refusal that may be of one item although the message does not say so, and of one whose message does.
_PERHAPS_OF_ITEM = frozenset({400, 413, 415, 422})
_OF_ITEM = _PERHAPS_OF_ITEM | {403, 404, 500, 501, 502}

# Rules by status alone. A response that matches no rule is a `BadRequest`.
_BY_STATUS: tuple[_Rule, ...] = (
    _Rule(InsufficientQuota, statuses=frozenset({402})),
    _Rule(Unauthorized, statuses=frozenset({401, 403})),
    _Rule(RateLimited, statuses=frozenset({429})),
    # 498: Groq has no room for a request without a guarantee.
    _Rule(Overloaded, statuses=frozenset({498, 529})),
    # 501 and 505: the server does not have what the request needs, and will not have it.
    _Rule(ProviderUnavailable, statuses=frozenset({408, 409, 425, *range(500, 600)} - {501, 505})),
)

# An error inside a stream has no status; infer it from the error's type.
_STATUS_OF_TYPE = {
    name: status
    for status, names in {
        400: _words(
            "BadRequestError bio_policy content_filter content_policy_violation cyber_policy",
            "image_parse_error invalid_base64 invalid_encrypted_content invalid_function_parameters",
            "invalid_image invalid_image_format invalid_image_url invalid_prompt invalid_request_error",
            "misalignment_policy_violation ValidationException",
        ),
        401: _words("authentication_error"),
        402: _words("billing_error"),
        403: _words("AccessDeniedException permission_error"),
        404: _words("not_found_error NotFoundError"),
        413: _words("request_too_large"),
        429: _words("rate_limit_error rate_limit_exceeded ThrottlingException"),
        503: _words("ServiceUnavailableException"),
        504: _words("timeout_error"),
        529: _words("overloaded_error"),
    }.items()
    for name in names
}


# MiniMax's own codes, which come with status 200.
_STATUS_OF_CODE = {
    1002: 429,
    1004: 401,
    1008: 402,
    1026: 400,
    1027: 400,
    1039: 429,
    2013: 400,
    2049: 401,
    2056: 429,
}


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """An HTTP response with another status than 200.

    Attributes:
        status: The HTTP status.
        headers: The headers, looked up by names in lower case.
        body: The body as text, whatever its content type; at most its first 64 KiB.
        at: The time of arrival, in seconds since the epoch: a `Retry-After` may name a date.
    """

    status: int
    headers: Mapping[str, str]
    body: str
    at: float


def classify_response(answer: ErrorAnswer) -> ProviderError:
    """Make the error of a response, by the body's codes and wording, or else by the status alone."""
    payload = parse_json(answer.body)
    # Gemini's error is the only item of a list.
    if isinstance(payload, list) and payload:
        payload = payload[0]
    fields = payload if isinstance(payload, dict) else {"message": answer.body}
    return _classify(fields, answer.status, parse_retry_after(answer.headers, answer.at))


def classify_event(payload: Mapping[str, Any]) -> ProviderError:
    """Make the error of an error event in a stream, whose status was 200."""
    return _classify(payload, None, None)


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait: from `retry-after-ms`, else from `retry-after`, in seconds or as an HTTP date."""
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _limit_wait(milliseconds / 1000)
    header = headers.get("retry-after")
    seconds = _parse_number(header)
    if seconds is not None:
        return _limit_wait(seconds)
    if header is None:
        return None
    try:
        return _limit_wait(parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def hide_look_alikes(text: str) -> str:
    """Redact substrings that look like keys, also ones unknown to the worker; make the text encodable as UTF-8."""
    return clean(_LOOKS_SECRET.sub(lambda match: f"{match['label'] or ''}[redacted]", text))


_LOOKS_SECRET = re.compile(r"(?P<label>\bbearer\s+)[^\s'\",;{}]{4,}|\bsk-[\w*.-]{4,}", re.IGNORECASE)


def _classify(payload: Mapping[str, Any], http_status: int | None, wait: float | None) -> ProviderError:
    fields = _find_fields(payload)
    if (upstream := _find_upstream_error(fields)) is not None:
        payload, fields = upstream, _find_fields(upstream)
    reasons = _list_reasons(fields)
    words = frozenset((*(value for key in ("type", "code") if isinstance(value := fields.get(key), str)), *reasons))
    message = _find_message(payload, fields)[:_RAW_LIMIT]
    status = http_status if http_status is not None else _infer_status(fields, message)
    text = " ".join((message[:_WORDING_LIMIT], *reasons))
    rules = (rule.error for rule in _BY_BODY if rule.matches(status, words, text))
    known = next(rules, None)
    if known is ContentRefused and status == 400 and _REFUSED_MEDIA.search(message[:_WORDING_LIMIT]):
        return ItemRefused(message, kind="media", status=http_status)
    if known is ContentRefused and not _REFUSED_OUTPUT.search(message[:_WORDING_LIMIT]):
        return PromptRefused(message, status=http_status)
    if known is None and (refused := _find_refused_item(fields, payload, status, words, message)):
        refused.status = http_status
        return refused
    by_status = (rule.error for rule in _BY_STATUS if rule.matches(status, words, text))
    error = known or next(by_status, BadRequest)
    details = _read_lengths(fields, message[:_WORDING_LIMIT]) if error is ContextLengthExceeded else {}
    if wait is None and error.retryable:
        wait = _read_wait(fields, message[:_WORDING_LIMIT])
    if not message.strip():
        message = f"the provider failed with status {status} and no message"
    return error(message, status=http_status, retry_after=wait, details=details)


def _find_refused_item(
    fields: Mapping[str, Any], payload: Mapping[str, Any], status: int, words: frozenset[str], message: str
) -> ItemRefused | None:
    """Find whether a response refuses one item of the request; None: it does not."""
    param = fields.get("param")
    if status not in _OF_ITEM or _NO_ITEM.search(message) or (isinstance(param, str) and param in _OPTIONS):
        return None
    paths = [param] if isinstance(param, str) else []
    details = payload.get("detail")
    locations = (one.get("loc") for one in details if isinstance(one, dict)) if isinstance(details, list) else ()
    paths += [".".join(map(str, location)) for location in locations if isinstance(location, list)]
    said = " ".join((message[:_WORDING_LIMIT], *paths, *sorted(words)))
    kind: ItemKind | None = next((kind for kind, pattern in _ITEMS if pattern.search(said)), None)
    # A missing page is not a missing item, and a failing server not one that has refused a request.
    is_gone = kind == "media" and _GONE.search(said) is not None
    if (status == 403 and not is_gone) or (status == 404 and not is_gone and kind != "own_data"):
        return None
    if status >= 500 and not _BROKEN.search(said):
        return None
    return ItemRefused(
        message if message.strip() else f"the provider failed with status {status} and no message",
        kind=kind,
        words=" ".join((message, *paths)),
    )


def _list_reasons(fields: Mapping[str, Any]) -> list[str]:
    """List the reasons that Google's errors have in their details: of a refusal, and the quotas that are used up."""
    reasons: list[str] = []
    for detail in _list_details(fields):
        violations = detail.get("violations")
        parts = [detail, *(violations if isinstance(violations, list) else ())]
        values = [part.get(key) for part in parts if isinstance(part, dict) for key in ("reason", "quotaId")]
        reasons += [value[:_LONGEST_REASON] for value in values if isinstance(value, str)]
    return reasons[:_MOST_REASONS]


def _list_details(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    details = fields.get("details")
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []


def _find_message(payload: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    for value in (
        fields.get("message"),
        payload.get("error"),
        payload.get("detail"),
        payload.get("message"),
        payload.get("errors"),
        payload.get("msg"),
    ):
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list | dict) and value and value is not fields:
            with suppress(RecursionError):
                return str(value)
    return ", ".join(str(fields[key]) for key in ("type", "code") if isinstance(fields.get(key), str | int))


def _find_fields(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = payload.get("error")
    return inner if isinstance(inner, dict) else payload


def _find_upstream_error(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the error of the provider behind a router, which has it as a text in `metadata`; None: there is none."""
    metadata = fields.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    upstream = parse_json(raw) if isinstance(raw, str) else raw
    if upstream is None and isinstance(raw, str) and " " in raw.strip():
        # It is the message alone.
        return {**fields, "message": raw, "metadata": None}
    if isinstance(upstream, list) and upstream:
        upstream = upstream[0]
    return upstream if isinstance(upstream, dict) and ("error" in upstream or "message" in upstream) else None


def _infer_status(fields: Mapping[str, Any], message: str) -> int:
    for name in ("type", "code", "http_code", "status_code", "status"):
        word = fields.get(name)
        if isinstance(word, str) and word in _STATUS_OF_TYPE:
            return _STATUS_OF_TYPE[word]
        # LiteLLM and MiniMax write the number as a text.
        if isinstance(word, str) and re.fullmatch(r"[45]\d\d", word, re.ASCII):
            return int(word)
        if isinstance(word, int) and 400 <= word < 600:
            return word
        if isinstance(word, int) and word in _STATUS_OF_CODE:
            return _STATUS_OF_CODE[word]
    # Servers between pass on the message of OpenAI's client alone.
    found = re.match(r"Error code: ([45]\d\d)\b", message)
    return int(found[1]) if found else 500


def _read_lengths(fields: Mapping[str, Any], message: str) -> dict[str, int]:
    """Return `limit` and `actual` in tokens, from llama.cpp's fields or from the message."""
    values = {"limit": fields.get("n_ctx"), "actual": fields.get("n_prompt_tokens")}
    numbers = {name: value for name, value in values.items() if isinstance(value, int) and 0 <= value <= _MOST_TOKENS}
    if numbers:
        return numbers
    matches = (match for pattern in (_TOO_LARGE_FOR_A_MINUTE, *_OVERFLOWS) if (match := pattern.search(message)))
    matched = (
        {name: int(digits) for name, digits in match.groupdict().items() if digits and len(digits) <= _MOST_DIGITS}
        for match in matches
    )
    return next(filter(None, matched), {})


# "Please try again in 7m12.5s", "Please retry in 34.07s", "Try again in 5 seconds".
_WAIT = re.compile(
    r"\b(?:try again|retry) (?:in|after) (?P<text>(?:\d{1,9}(?:\.\d{1,9})? ?(?:ms|[hms])[a-z]{0,6} ?){1,3})",
    re.IGNORECASE,
)
_WAIT_PART = re.compile(r"(\d+(?:\.\d+)?) ?(ms|milli|[hms])", re.IGNORECASE)
_SECONDS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001, "milli": 0.001}


def _read_wait(fields: Mapping[str, Any], message: str) -> float | None:
    """Read the seconds to wait from Google's `retryDelay`, or else from the message; None: neither says them."""
    delays = (detail.get("retryDelay") for detail in _list_details(fields))
    texts = [delay[:_LONGEST_REASON] for delay in delays if isinstance(delay, str)]
    if match := _WAIT.search(message):
        texts.append(match["text"])
    for text in texts:
        if parts := _WAIT_PART.findall(text):
            return _limit_wait(sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts))
    return None


def _parse_number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _limit_wait(seconds: float) -> float | None:
    return None if math.isnan(seconds) else min(max(seconds, 0.0), _LONGEST_WAIT)
