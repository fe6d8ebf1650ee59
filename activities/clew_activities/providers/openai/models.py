"""What each of OpenAI's models takes, in Responses and in Chat Completions, read from the model's name. Pure.

| models                       | `reasoning.effort`             | encrypted reasoning | temperature       | `phase` |
|------------------------------|--------------------------------|---------------------|-------------------|---------|
| gpt-3, gpt-4, chatgpt        | no                             | no                  | yes               | no      |
| gpt-…-chat                   | no                             | no                  | no                | no      |
| o1, o3, o4                   | low, medium, high              | yes                 | no                | no      |
| gpt-5                        | minimal to high                | yes                 | no                | no      |
| gpt-5.1                      | none, low to high              | yes                 | at effort `none`  | no      |
| gpt-5.2                      | none, low to xhigh             | yes                 | at effort `none`  | no      |
| gpt-5.4, gpt-5.5             | none, low to xhigh             | yes                 | at effort `none`  | yes     |
| gpt-5.6, gpt-6               | none, low to max               | yes                 | at effort `none`  | yes     |
| gpt-6-astra, gpt-6.1 and on  | low to max                     | yes                 | no                | yes     |
| their variants `pro`, `codex`| fewer                          | yes                 | no                | as above|
| other names                  | all                            | with an effort      | yes               | no      |

The names are those of developers.openai.com/api/docs/models. In Chat Completions the models with encrypted reasoning
take no temperature at any level, and from gpt-5.4 on no reasoning beside function tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from clew_activities.providers.dialects import DIALECTS, THINKING_OFF, Dialect
from clew_activities.providers.options import EFFORTS, LOW_TO_HIGH, LOW_TO_MAX, LOW_TO_XHIGH
from clew_workflows.contract import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIModel:
    """The features of a model; the module's docstring has the table.

    Attributes:
        efforts: The accepted levels of reasoning.
        reasons: Whether the model reasons, and its reasoning comes back encrypted; None: it does if the session sets
            a level.
        temperature: Whether Responses take a temperature at every level; otherwise at `none` alone.
        verbosity: Whether the verbosity can be set.
        phase: Whether the messages of the model say which part of a run they are.
        tools_effort: The level that Chat Completions take beside function tools: any, the model's own, or `none`.
    """

    efforts: tuple[str, ...]
    reasons: bool | None = True
    temperature: bool = False
    verbosity: bool = True
    phase: bool = False
    tools_effort: Literal["keep", "omit", "none"] = "keep"


_PRO = ("medium", "high", "xhigh")

_UNKNOWN = OpenAIModel(efforts=EFFORTS, reasons=None, temperature=True)
_MODELS: tuple[tuple[re.Pattern[str], OpenAIModel], ...] = tuple(
    (re.compile(pattern), model)
    for pattern, model in (
        # "Encrypted content is not supported with this model."
        (r"gpt-[34]|chatgpt-", OpenAIModel(efforts=(), reasons=False, temperature=True, verbosity=False)),
        (r"gpt-[\d.]+-chat|chat-", OpenAIModel(efforts=(), reasons=False, verbosity=False)),
        (r"o[1-9](-|$)", OpenAIModel(efforts=LOW_TO_HIGH, verbosity=False)),
        (r"gpt-5-pro", OpenAIModel(efforts=("high",))),
        (r"gpt-5(\.1)?-codex(?!-max)", OpenAIModel(efforts=LOW_TO_HIGH)),
        (r"gpt-5(-|$)", OpenAIModel(efforts=("minimal", *LOW_TO_HIGH))),
        (r"gpt-5\.1-codex-max", OpenAIModel(efforts=LOW_TO_XHIGH)),
        # "Unsupported value: 'minimal' is not supported with the 'gpt-5.1' model."
        (r"gpt-5\.1(-|$)", OpenAIModel(efforts=("none", *LOW_TO_HIGH))),
        (r"gpt-5\.[2-3]-codex", OpenAIModel(efforts=LOW_TO_XHIGH, phase=True)),
        (r"gpt-5\.[2-3]-pro", OpenAIModel(efforts=_PRO)),
        (r"gpt-5\.[2-3](-|$)", OpenAIModel(efforts=("none", *LOW_TO_XHIGH))),
        (r"gpt-5\.[4-5]-pro", OpenAIModel(efforts=_PRO, phase=True, tools_effort="omit")),
        (r"gpt-5\.[4-5](-|$)", OpenAIModel(efforts=("none", *LOW_TO_XHIGH), phase=True, tools_effort="omit")),
        (r"gpt-5\.\d+-pro", OpenAIModel(efforts=(*_PRO, "max"), phase=True, tools_effort="none")),
        (r"gpt-5\.\d|gpt-6-(sol|luna)", OpenAIModel(efforts=("none", *LOW_TO_MAX), phase=True, tools_effort="none")),
        # GPT-6.1 Sol refuses `none`, as Astra does.
        (r"gpt-([6-9]|\d\d)", OpenAIModel(efforts=LOW_TO_MAX, phase=True, tools_effort="none")),
        (r"gpt-oss", OpenAIModel(efforts=LOW_TO_HIGH, reasons=None, temperature=True)),
    )
)


def find_model(model: str) -> OpenAIModel:
    """Find what a model takes by its name, without what stands before a slash."""
    bare = model.lower().rpartition("/")[2]
    return next((known for pattern, known in _MODELS if pattern.match(bare)), _UNKNOWN)


_O_SERIES = re.compile(r"o\d")


def limits_calls(options: ModelOptions, model: str) -> bool:
    """Whether a request says that a reply has one tool call. The models of the o-series refuse the field."""
    return options.parallel_tool_calls is False and not _O_SERIES.match(model.rpartition("/")[2])


# What the family of a model changes in the dialect of its server: many servers pass messages to the template of a
# model, and a gateway to the API of its vendor. A quotation is the error of a server that refuses what the row leaves
# out.


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


MAX_REMEMBERED = 256
"""Most models whose families are remembered."""
_TEMPLATED = frozenset({"strict", "vllm", "llamacpp", "ollama", "litellm", "openrouter"})
_OF_OPENAI = frozenset({"strict", "openai", "azure", "litellm", "openrouter"})
"""The dialects of servers that have OpenAI's own models."""

_GEMINI, _KIMI = DIALECTS["gemini"], DIALECTS["kimi"]

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
    _Family(re.compile(r"gemini-2\.5-flash"), {"efforts": ("none", "minimal", *LOW_TO_HIGH)}, frozenset({"gemini"})),
    _Family(re.compile(r"gemini-3-pro"), {"efforts": ("low", "high")}, frozenset({"gemini"})),
    _Family(re.compile(r"gemini-3\.(\d+-pro|[78]-flash)"), {"efforts": LOW_TO_HIGH}, frozenset({"gemini"})),
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
    _Family(re.compile(r"kimi-k2\.[5-9]"), {"no_reasoning": THINKING_OFF}, frozenset({"kimi"})),
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
    _Family(re.compile(r"minimax-m[3-9]"), {"no_reasoning": THINKING_OFF}, frozenset({"minimax"})),
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
    _Family(re.compile(r"grok-4\.3"), {"efforts": ("none", *LOW_TO_HIGH)}, frozenset({"xai"})),
    _Family(re.compile(r"grok-4\.[45]"), {"efforts": LOW_TO_HIGH}, frozenset({"xai"})),
    _Family(re.compile(r"grok-(4\.[6-9]|4\.20-multi-agent|[5-9])"), {"efforts": LOW_TO_XHIGH}, frozenset({"xai"})),
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
    changes = _find_changes(dialect.name, model)
    return replace(dialect, **changes) if changes else dialect


@lru_cache(maxsize=MAX_REMEMBERED)
def _find_changes(dialect: str, model: str) -> Mapping[str, Any]:
    """Find what the family of a model changes. Each call needs it for its request, its media and its reply."""
    bare = model.lower().rpartition("/")[2]
    changes = _list_changes(find_model(model), dialect) if dialect in _OF_OPENAI else {}
    for family in _FAMILIES:
        if dialect in (family.dialects or _TEMPLATED) and family.pattern.match(bare):
            changes |= family.changes
    return changes


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
