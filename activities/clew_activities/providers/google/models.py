"""What each generation of Gemini's models takes, read from the model's name. Pure.

| models              | thinking         | answer beside tools | own tools beside tools | calls need a signature |
|---------------------|------------------|---------------------|------------------------|------------------------|
| before 2.5          | no               | in the prompt       | no                     | no                     |
| 2.5                 | `thinkingBudget` | in the prompt       | no                     | no                     |
| 3 and later, others | `thinkingLevel`  | yes                 | yes, not at Vertex AI  | yes                    |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clew_activities.providers.options import LOW_TO_HIGH


@dataclass(frozen=True)
class Generation:
    """The features of a model's generation; the module's docstring has the table.

    Attributes:
        levels: The levels of thinking that it takes; none: it takes a budget, or does not think.
        budget: The least and the highest budget of thinking.
        can_stop_thinking: Whether a budget of 0 is accepted.
        combines: Whether an answer's schema and the API's own tools may stand beside a session's tools.
        signs: Whether a call needs a signature.
        shows_results: Whether images and PDF files may stand in the response of a function.
    """

    levels: tuple[str, ...] = ()
    budget: tuple[int, int] | None = None
    can_stop_thinking: bool = False
    combines: bool = False
    signs: bool = False
    shows_results: bool = False


def find_generation(model: str) -> Generation:
    """Parse `gemini-2.5-flash`, `models/gemini-3-pro-preview`, `gemini-flash-latest`."""
    match = re.search(r"gemini-(\d{1,2})(?:\.(\d{1,2}))?(?!\d)", model)
    # A name without a version, such as `gemini-pro-latest`, is that of a newer model.
    major, minor = (int(match[1]), int(match[2] or 0)) if match else (99, 0)
    version = (major, minor)
    is_flash, is_lite = "flash" in model, "lite" in model
    if version < (2, 5) or (match is None and "gemini" not in model):
        return Generation()
    if version < (3, 0):
        least = 512 if is_lite else 1 if is_flash else 128
        return Generation(budget=(least, 24_576 if is_flash else 32_768), can_stop_thinking=is_flash)
    # ai.google.dev/gemini-api/docs/generate-content/thinking#thinking-levels
    levels: tuple[str, ...] = LOW_TO_HIGH
    if is_lite or (is_flash and version in ((3, 0), (3, 5))):
        levels = ("minimal", *levels)
    elif version == (3, 0):
        levels = ("low", "high")
    return Generation(levels=levels, combines=True, signs=True, shows_results=True)
