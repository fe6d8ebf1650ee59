"""The fields of the API's requests: which are served, which differ, and which are refused.

The tables of `docs/reference/http.md` are made from these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from clew.serve.openai import bodies
from clew.serve.openai.refusals import (
    UnsupportedParameter,
    UnsupportedValue,
    find_deepest,
    translate_validation_error,
)

Support = Literal["served", "differs", "refused"]
B = TypeVar("B", bound=bodies.Body)

RESPONSES: Mapping[str, tuple[Support, str]] = {
    "background": ("served", "`GET` and `cancel` work for every response, in the background or not."),
    "conversation": ("served", "A conversation is a session, and its id the session's. A response always names it."),
    "include": (
        "differs",
        "What can be included is always there. Reasoning stays in the session; `logprobs` are refused.",
    ),
    "input": (
        "differs",
        "Messages, calls and results, decisions, and items of earlier responses. Others are refused by their type.",
    ),
    "instructions": (
        "differs",
        "The system prompt of this request alone, in the place of an agent's. A key with `agents` sets none.",
    ),
    "max_output_tokens": (
        "served",
        "For each model call of the response. With a key that has `agents`, at most the agent's.",
    ),
    "metadata": ("served", "Names that begin with `clew.` are refused."),
    "model": (
        "differs",
        "The name of an agent, or `provider:model`. It may be left out where a conversation has one.",
    ),
    "parallel_tool_calls": ("served", "With `false` the first call of a reply is carried out."),
    "previous_response_id": ("served", "Of a response that is not the newest of its conversation it makes a fork."),
    "prompt_cache_key": ("differs", "It is repeated. Each session has a key of its own."),
    "reasoning": (
        "differs",
        "`effort`. A `summary` is what the provider sends of its reasoning. Other members are refused.",
    ),
    "safety_identifier": ("differs", "It is kept with the message and repeated, and not sent to the provider."),
    "service_tier": ("served", "The provider's name of a tier."),
    "store": (
        "differs",
        "With `false` the response cannot be read or continued by its id. The session keeps its thread.",
    ),
    "stream": ("served", "The numbers of the events follow from the thread: `starting_after` works in any process."),
    "stream_options": ("differs", "`include_obfuscation: true` is refused."),
    "temperature": ("served", ""),
    "text": ("served", "`format` of the types `text`, `json_object` and `json_schema`, and `verbosity`."),
    "tool_choice": ("differs", "`auto`, `none`, `required` or one function, for all model calls of the response."),
    "tools": ("differs", "Functions. An agent's tools and those of its provider are configured with the agent."),
    "top_p": ("served", ""),
    "truncation": ("differs", "The context policy truncates; `disabled` is refused."),
    "user": ("differs", "It is kept with the message and repeated, and not sent to the provider."),
    "access_programs": ("refused", ""),
    "background_options": ("refused", ""),
    "context_management": ("refused", "The context policy compacts."),
    "image": ("refused", ""),
    "max_tool_calls": ("refused", "An agent's `max_iterations` limits its model calls."),
    "moderation": ("refused", "Hooks of the worker check messages and answers."),
    "prompt": ("refused", "Prompts are configured with agents."),
    "prompt_cache_options": ("refused", ""),
    "prompt_cache_retention": ("refused", ""),
    "top_logprobs": ("refused", ""),
}
"""The fields of `POST /v1/responses`."""

CHAT: Mapping[str, tuple[Support, str]] = {
    "max_completion_tokens": ("served", "For each model call. With a key that has `agents`, at most the agent's."),
    "max_tokens": ("served", "The same as `max_completion_tokens`."),
    "messages": (
        "differs",
        "Messages of the system become the `instructions` of the request, in their order; without another message "
        "the last one is answered. The `name` of a speaker is not sent.",
    ),
    "metadata": ("served", "Names that begin with `clew.` are refused."),
    "modalities": ("differs", '`["text"]` alone.'),
    "model": ("differs", "The name of an agent, or `provider:model`."),
    "n": ("differs", "1 alone."),
    "parallel_tool_calls": ("served", "With `false` the first call of a reply is carried out."),
    "prompt_cache_key": ("differs", "It is kept with the message. Each session has a key of its own."),
    "reasoning_effort": ("served", ""),
    "response_format": ("served", "`text`, `json_object` and `json_schema`."),
    "safety_identifier": ("differs", "It is kept with the message, and not sent to the provider."),
    "seed": ("served", "For providers that have seeds."),
    "service_tier": ("served", "The provider's name of a tier."),
    "stop": ("served", ""),
    "store": ("differs", "The session always keeps its thread."),
    "stream": ("served", ""),
    "stream_options": ("differs", "`include_usage`. `include_obfuscation: true` is refused."),
    "temperature": ("served", ""),
    "tool_choice": ("differs", "`auto`, `none`, `required` or one function, for all model calls of the request."),
    "tools": ("differs", "Functions."),
    "top_p": ("served", ""),
    "user": ("differs", "It is kept with the message, and not sent to the provider."),
    "verbosity": ("served", ""),
    "audio": ("refused", ""),
    "frequency_penalty": ("refused", ""),
    "function_call": ("refused", "`tool_choice` has taken its place."),
    "functions": ("refused", "`tools` has taken its place."),
    "logit_bias": ("refused", ""),
    "logprobs": ("refused", ""),
    "moderation": ("refused", "Hooks of the worker check messages and answers."),
    "prediction": ("refused", ""),
    "presence_penalty": ("refused", ""),
    "prompt_cache_options": ("refused", ""),
    "prompt_cache_retention": ("refused", ""),
    "top_logprobs": ("refused", ""),
    "web_search_options": ("refused", "The provider's tools are configured with an agent."),
}
"""The fields of `POST /v1/chat/completions`."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    # An empty object asks for a search.
    "web_search_options": (None,),
    # What a provider does without it.
    "prompt_cache_retention": ("in_memory", "in-memory"),
}
"""The neutral values of refused fields that differ from those of all others."""


def _find_neutral(name: str) -> tuple[Any, ...]:
    own = _NEUTRAL.get(name, ())
    return own if name == "web_search_options" else (*bodies.NEUTRAL, *own)


def read_body(model: type[B], body: Mapping[str, Any], fields: Mapping[str, tuple[Support, str]]) -> B:
    """Read the body of a request. Nothing in it is ignored.

    Raises:
        UnknownParameter: The API has no field of a name.
        UnsupportedParameter: A field is refused.
        UnsupportedValue: A field is served, and not with this value.
        InvalidValue: A field is missing or not valid.
    """
    for name, value in body.items():
        support, note = fields.get(name, ("served", ""))
        if support == "refused" and value not in _find_neutral(name):
            reason = f": {note[0].lower()}{note[1:]}" if note else "."
            raise UnsupportedParameter(f"Unsupported parameter: '{name}' is not served{reason}", param=name)
    asked = {name: value for name, value in body.items() if fields.get(name, ("served", ""))[0] != "refused"}
    try:
        return model.model_validate(asked)
    except ValidationError as error:
        refusal = translate_validation_error(error, asked)
        first, name = find_deepest(error, asked), re.split(r"[.\[]", refusal.param or "")[0]
        support, note = fields.get(name, ("served", ""))
        is_chosen = first["type"] in ("literal_error", "union_tag_invalid", "extra_forbidden")
        if support == "differs" and is_chosen and name not in ("input", "messages"):
            raise UnsupportedValue(f"Unsupported value for '{refusal.param}': {note}", param=refusal.param) from None
        raise refusal from None
