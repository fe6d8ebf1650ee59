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
from dataclasses import dataclass
from typing import Literal

from clew_activities.providers.options import EFFORTS
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


_LOW_TO_HIGH = ("low", "medium", "high")
_LOW_TO_XHIGH = (*_LOW_TO_HIGH, "xhigh")
_LOW_TO_MAX = (*_LOW_TO_XHIGH, "max")
_PRO = ("medium", "high", "xhigh")

_UNKNOWN = OpenAIModel(efforts=EFFORTS, reasons=None, temperature=True)
_MODELS: tuple[tuple[re.Pattern[str], OpenAIModel], ...] = tuple(
    (re.compile(pattern), model)
    for pattern, model in (
        # "Encrypted content is not supported with this model."
        (r"gpt-[34]|chatgpt-", OpenAIModel(efforts=(), reasons=False, temperature=True, verbosity=False)),
        (r"gpt-[\d.]+-chat|chat-", OpenAIModel(efforts=(), reasons=False, verbosity=False)),
        (r"o[1-9](-|$)", OpenAIModel(efforts=_LOW_TO_HIGH, verbosity=False)),
        (r"gpt-5-pro", OpenAIModel(efforts=("high",))),
        (r"gpt-5(\.1)?-codex(?!-max)", OpenAIModel(efforts=_LOW_TO_HIGH)),
        (r"gpt-5(-|$)", OpenAIModel(efforts=("minimal", *_LOW_TO_HIGH))),
        (r"gpt-5\.1-codex-max", OpenAIModel(efforts=_LOW_TO_XHIGH)),
        # "Unsupported value: 'minimal' is not supported with the 'gpt-5.1' model."
        (r"gpt-5\.1(-|$)", OpenAIModel(efforts=("none", *_LOW_TO_HIGH))),
        (r"gpt-5\.[2-3]-codex", OpenAIModel(efforts=_LOW_TO_XHIGH, phase=True)),
        (r"gpt-5\.[2-3]-pro", OpenAIModel(efforts=_PRO)),
        (r"gpt-5\.[2-3](-|$)", OpenAIModel(efforts=("none", *_LOW_TO_XHIGH))),
        (r"gpt-5\.[4-5]-pro", OpenAIModel(efforts=_PRO, phase=True, tools_effort="omit")),
        (r"gpt-5\.[4-5](-|$)", OpenAIModel(efforts=("none", *_LOW_TO_XHIGH), phase=True, tools_effort="omit")),
        (r"gpt-5\.\d+-pro", OpenAIModel(efforts=(*_PRO, "max"), phase=True, tools_effort="none")),
        (r"gpt-5\.\d|gpt-6-(sol|luna)", OpenAIModel(efforts=("none", *_LOW_TO_MAX), phase=True, tools_effort="none")),
        # GPT-6.1 Sol refuses `none`, as Astra does.
        (r"gpt-([6-9]|\d\d)", OpenAIModel(efforts=_LOW_TO_MAX, phase=True, tools_effort="none")),
        (r"gpt-oss", OpenAIModel(efforts=_LOW_TO_HIGH, reasons=None, temperature=True)),
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
