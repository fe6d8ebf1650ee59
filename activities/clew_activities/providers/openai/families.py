"""What the family of a model changes in the dialect of its server. Pure.

Many servers pass messages to the template of a model, and a gateway passes them to the API of its vendor. The model's
name says its family. A quotation is the error of a server that refuses what the row leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clew_activities.providers.dialects import DIALECTS, Dialect
from clew_activities.providers.openai.models import OpenAIModel, find_model


@dataclass(frozen=True, slots=True)
class _Family:
    """A family of models.

    Attributes:
        pattern: Matches the names of its models, without what stands before a slash.
        dialects: The dialects that it changes; None: those that pass messages to the templates of many models.
        changes: What differs.
    """

    pattern: re.Pattern[str]
    changes: Mapping[str, Any]
    dialects: frozenset[str] | None = None


_TEMPLATED = frozenset({"strict", "vllm", "llamacpp", "ollama", "litellm", "openrouter"})
_OF_OPENAI = frozenset({"strict", "openai", "azure", "litellm", "openrouter"})
"""The dialects of servers that have OpenAI's own models."""

_GEMINI, _KIMI = DIALECTS["gemini"], DIALECTS["kimi"]
_THREE_EFFORTS = ("low", "medium", "high")
_FOUR_EFFORTS = (*_THREE_EFFORTS, "xhigh")
_THINKING_OFF: Mapping[str, Any] = {"thinking": {"type": "disabled"}}

_FAMILIES: tuple[_Family, ...] = (
    # "`temperature` is deprecated for this model."
    _Family(
        re.compile(r".*claude-[a-z]+-(4[.-][7-9]|[5-9])(\D|$)"),
        {"options_left_out": frozenset({"seed", "temperature", "top_p"})},
        frozenset({"litellm"}),
    ),
    # "`temperature` and `top_p` cannot both be specified for this model."
    _Family(re.compile(r".*claude"), {"top_p": "alone"}, frozenset({"strict", "litellm", "openrouter"})),
    _Family(re.compile(r"gemma-?[12](\D|$)"), {"system": "user"}),
    _Family(re.compile(r"gemini-"), {"signature": _GEMINI.signature, "tools": _GEMINI.tools}),
    # "Thinking level MEDIUM is not supported for this model."
    _Family(
        re.compile(r"gemini-2\.5-flash"), {"efforts": ("none", "minimal", *_THREE_EFFORTS)}, frozenset({"gemini"})
    ),
    _Family(re.compile(r"gemini-3-pro"), {"efforts": ("low", "high")}, frozenset({"gemini"})),
    _Family(re.compile(r"gemini-3\.(\d+-pro|[78]-flash)"), {"efforts": _THREE_EFFORTS}, frozenset({"gemini"})),
    # "reasoning_effort='medium' is not supported for this model. Must be one of none, high"
    _Family(
        re.compile(r"(mistral|magistral)-small-(latest|2603|4)|mistral-medium-(latest|2604|3)"),
        {"efforts": ("none", "high"), "options_left_out": frozenset()},
        frozenset({"mistral"}),
    ),
    _Family(
        re.compile(r"deepseek-(?!chat)"),
        {"required": "reasoning_content", "required_of_all": True},
        frozenset({"strict", "openrouter"}),
    ),
    _Family(re.compile(r"kimi-"), {"required": "reasoning_content", "tools": _KIMI.tools}, frozenset({"strict"})),
    # "thinking is enabled but reasoning_content is missing in assistant tool call message"
    _Family(re.compile(r"kimi-"), {"required": "reasoning_content"}, frozenset({"openrouter"})),
    # "Tool choice must be auto"
    _Family(
        re.compile(r"glm-"),
        {"forces_tools": False, "names_forced_tool": False, "forbids_tools": False},
        frozenset({"strict", "openrouter"}),
    ),
    # Templates show the model the id alone, which has the tool's name.
    _Family(re.compile(r"kimi-k2"), {"ids": _KIMI.ids, "named_ids": True}),
    # They take no temperature but their own.
    _Family(
        re.compile(r"kimi-k2(\.[5-9]|-thinking)"),
        {"options_left_out": frozenset({"temperature", "top_p", "seed", "reasoning_effort"})},
        frozenset({"kimi"}),
    ),
    _Family(re.compile(r"kimi-k2\.[5-9]"), {"no_reasoning": _THINKING_OFF}, frozenset({"kimi"})),
    # It always reasons.
    _Family(
        re.compile(r"kimi-k([3-9]|\d\d)"),
        {"options_left_out": frozenset({"temperature", "top_p", "seed"}), "efforts": ("low", "high", "max")},
        frozenset({"kimi"}),
    ),
    # Only these take an effort. "This model always engages in thinking and cannot be disabled"
    _Family(
        re.compile(r"glm-5\.2"),
        {"efforts": ("high", "max"), "options_left_out": frozenset({"seed", "stop"})},
        frozenset({"glm"}),
    ),
    _Family(
        re.compile(r"glm-(5\.[3-9]|[6-9])"),
        {"efforts": ("low", "high", "max"), "no_reasoning": {}, "options_left_out": frozenset({"seed", "stop"})},
        frozenset({"glm"}),
    ),
    _Family(re.compile(r"minimax-m[3-9]"), {"no_reasoning": _THINKING_OFF}, frozenset({"minimax"})),
    # "The value of the enable_thinking parameter is restricted to True."
    _Family(re.compile(r"q[vw]q|.*-thinking"), {"no_reasoning": {}}, frozenset({"qwen"})),
    # "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low."
    _Family(re.compile(r"qwen3\.[89]"), {"efforts": ("low", "medium", "xhigh")}, frozenset({"vllm", "llamacpp"})),
    # "chat_template is not supported for Mistral tokenizers."
    _Family(re.compile(r"(\w+stral|mixtral)-"), {"no_reasoning": {}}, frozenset({"vllm"})),
    # "This model only supports single tool-calls at once!"
    _Family(re.compile(r"(meta-)?llama-?3"), {"single_calls": True}),
    # Of its template either the text or the reasoning may stand beside calls.
    _Family(re.compile(r"gpt-oss"), {"lone_reasoning": True, "no_reasoning": {}}),
    # Only these of xAI's models take an effort, and of Groq's and Cerebras' those of OpenAI.
    _Family(
        re.compile(r"grok-(?!3-mini|4\.[3-9]|4\.20-multi-agent|[5-9])"),
        {"options_left_out": frozenset({"stop", "reasoning_effort"})},
        frozenset({"xai"}),
    ),
    _Family(re.compile(r"grok-4\.3"), {"efforts": ("none", *_THREE_EFFORTS)}, frozenset({"xai"})),
    _Family(re.compile(r"grok-4\.[45]"), {"efforts": _THREE_EFFORTS}, frozenset({"xai"})),
    _Family(re.compile(r"grok-(4\.[6-9]|4\.20-multi-agent|[5-9])"), {"efforts": _FOUR_EFFORTS}, frozenset({"xai"})),
    _Family(
        re.compile(r"(?!gpt-oss)"),
        {"options_left_out": frozenset({"reasoning_effort"})},
        frozenset({"groq", "cerebras"}),
    ),
    # "reasoning_effort must be one of none or default"
    _Family(re.compile(r"qwen-?3"), {"options_left_out": frozenset(), "efforts": ("none",)}, frozenset({"groq"})),
    _Family(re.compile(r"zai-glm"), {"options_left_out": frozenset(), "efforts": ("none",)}, frozenset({"cerebras"})),
    # These names stand for one of the modes.
    _Family(
        re.compile(r"deepseek-(chat|reasoner)"),
        {"no_reasoning": {}, "options_left_out": frozenset({"seed", "reasoning_effort"})},
        frozenset({"deepseek"}),
    ),
    # Its replies outside of thinking have no reasoning.
    _Family(re.compile(r"deepseek-chat"), {"required": None, "forces_tools": True}, frozenset({"deepseek"})),
)


def specialize(dialect: Dialect, model: str) -> Dialect:
    """Change a dialect as the family of a model needs it."""
    bare = model.lower().rpartition("/")[2]
    if dialect.name in _OF_OPENAI:
        dialect = replace(dialect, **_list_changes(find_model(model), dialect.name))
    for family in _FAMILIES:
        if dialect.name in (family.dialects or _TEMPLATED) and family.pattern.match(bare):
            dialect = replace(dialect, **family.changes)
    return dialect


def _list_changes(model: OpenAIModel, dialect: str) -> dict[str, Any]:
    """List what one of OpenAI's models changes, also behind a gateway."""
    if model.reasons:
        # They refuse `max_tokens`, a temperature and `stop`.
        return {
            "token_limit": "max_completion_tokens",
            "options_left_out": frozenset({"temperature", "top_p", "stop", "seed"}),
            "efforts": model.efforts,
            "verbosity": model.verbosity,
            "tools_effort": model.tools_effort,
        }
    if model.reasons is None or dialect in ("strict", "openrouter"):
        return {}
    # "Unrecognized request argument supplied: reasoning_effort", "'verbosity' does not support 'low' with this model"
    if dialect == "litellm":
        return {"options_left_out": frozenset({"seed", "reasoning_effort"})}
    return {"options_left_out": frozenset({"reasoning_effort"}), "verbosity": False}
