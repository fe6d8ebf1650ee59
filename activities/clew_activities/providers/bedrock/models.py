"""The table of families of models at Amazon Bedrock: what Converse takes for each, and what it refuses. Pure.

Converse has one format for all models and refuses in it what a model does not have: "This model doesn't support the
stopSequences field. Remove stopSequences and try again." The pages of docs.aws.amazon.com/bedrock say it of each:
`conversation-inference-supported-models-features` of tools and system prompts, `prompt-caching` of cache points,
`structured-output` of schemas, and `model-parameters` of reasoning. What they do not say stands beside its row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from clew_activities.providers.dialects import BEDROCK, BEDROCK_OTHERS, Dialect
from clew_activities.providers.options import LOW_TO_HIGH, LOW_TO_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What Converse takes for a family of models. The defaults are the strictest.

    Attributes:
        pattern: Found in the names of its models, in lower case.
        dialect: The limits of tools and of the ids of calls.
        reasoning: How a request asks for reasoning; None: it cannot.
        efforts: The levels of reasoning; empty for Claude.
        returns_reasoning: Whether reasoning goes back, to the model that sent it.
        signs_reasoning: Whether reasoning without a signature is refused.
        caches: Where cache points may stand: everywhere, after texts alone, or nowhere.
        any_tool: Whether some tool can be forced.
        named_tool: Whether one tool can be forced.
        samples: Whether a temperature and `topP` are taken.
        stops: Whether `stopSequences` are taken.
        answers: Whether an answer's schema is taken.
        mixes: Whether texts may stand in one turn with tools' calls and results.
        plain_root: Whether the root of a tool's schema may have a type, properties and `required` alone.
        system: Whether there are system prompts.
        streams_tools: Whether requests with tools can be streamed.
    """

    pattern: re.Pattern[str] = re.compile("")
    dialect: Dialect = BEDROCK_OTHERS
    reasoning: Literal["thinking", "reasoningConfig", "reasoning_effort", "reasoning", "reasoning_config"] | None = (
        None
    )
    efforts: tuple[str, ...] = ()
    returns_reasoning: bool = True
    signs_reasoning: bool = False
    caches: Literal["everywhere", "texts", "nowhere"] = "nowhere"
    any_tool: bool = False
    named_tool: bool = False
    samples: bool = True
    stops: bool = False
    answers: bool = False
    mixes: bool = False
    plain_root: bool = False
    system: bool = True
    streams_tools: bool = True


_CLAUDE = Family(
    pattern=re.compile(r"anthropic\.claude-"),
    dialect=BEDROCK,
    reasoning="thinking",
    signs_reasoning=True,
    caches="everywhere",
    any_tool=True,
    named_tool=True,
    stops=True,
    mixes=True,
)
"""What a generation of Claude takes of thinking, effort and sampling is in `anthropic.models`."""

_NOVA = Family(
    pattern=re.compile(r"amazon\.nova-"),
    # A cache point among the tools is "extraneous key [cachePoint] is not permitted".
    caches="texts",
    any_tool=True,
    named_tool=True,
    stops=True,
    mixes=True,
    plain_root=True,
)

_FAMILIES: tuple[Family, ...] = (
    replace(
        _CLAUDE,
        pattern=re.compile(r"anthropic\.claude-(v2|instant|3-(haiku|sonnet|opus|5))"),
        reasoning=None,
        signs_reasoning=False,
        caches="nowhere",
    ),
    # Structured answers, as `structured-output` lists them. Later models refuse them in Converse:
    # "output_config.format: Extra inputs are not permitted".
    replace(_CLAUDE, pattern=re.compile(r"anthropic\.claude-[a-z]+-4-[56](?!\d)"), answers=True),
    _CLAUDE,
    # With the effort `high` it refuses a limit of the reply's tokens, which Clew always sends.
    replace(
        _NOVA,
        pattern=re.compile(r"amazon\.nova-(2|[3-9]|\d\d)"),
        reasoning="reasoningConfig",
        efforts=("low", "medium"),
        caches="nowhere",
    ),
    _NOVA,
    Family(pattern=re.compile(r"openai\.gpt-oss"), reasoning="reasoning_effort", efforts=LOW_TO_HIGH, mixes=True),
    Family(
        pattern=re.compile(r"openai\."),
        reasoning="reasoning",
        efforts=("none", *LOW_TO_MAX),
        samples=False,
        mixes=True,
    ),
    Family(pattern=re.compile(r"moonshot(ai)?\."), reasoning="reasoning_effort", efforts=LOW_TO_HIGH),
    Family(pattern=re.compile(r"qwen\."), reasoning="reasoning_config", efforts=("low", "high")),
    # What it has thought is refused in later turns.
    Family(pattern=re.compile(r"deepseek\."), returns_reasoning=False, stops=True),
    Family(pattern=re.compile(r"mistral\.(mistral-7b|mixtral)"), system=False),
    Family(pattern=re.compile(r"mistral\.mistral-large"), any_tool=True),
    Family(pattern=re.compile(r"amazon\.titan|cohere\.command-(light-)?text|ai21\.j2"), system=False),
    Family(pattern=re.compile(r"meta\.llama|ai21\."), streams_tools=False),
)

_OTHER = Family()


def find_family(model: str) -> Family:
    """Find the family of a model by its name, which may be an ARN. An ARN of one's own profile has no family."""
    name = model.lower()
    return next((family for family in _FAMILIES if family.pattern.search(name)), _OTHER)
