"""What models write between tags, and some servers leave in the text of a reply: thinking, and calls of tools.

A server without a parser for its model sends what the model writes. Of some templates the opening tag stands in the
prompt, so that the text has the closing one alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal


class TaggedText:
    """Tells the thinking at the beginning of a text from the rest, where it stands between tags as `<think>`.

    Attributes:
        opening: The text up to the first tag and a little more, as it came; empty: there is no such tag.
    """

    def __init__(self) -> None:
        self.opening = ""
        self._held = ""
        self._closing = ""
        self._state: Literal["start", "thinking", "after", "text"] = "start"

    def split(self, piece: str) -> tuple[str, str]:
        """Take a piece. Returns what it adds to the thinking and to the text; a part that may be a tag is held."""
        if self._state == "text":
            return "", piece
        self._held += piece
        if self._state == "start":
            begun = self._held.lstrip()
            tag = next(filter(begun.startswith, _TAGS), None)
            if tag is None and len(self._held) < _MOST_HELD and any(one.startswith(begun) for one in _TAGS):
                return "", ""
            if tag is None:
                return "", self._take_rest()
            self._state, self.opening, self._held = "thinking", self._held, begun[len(tag) :]
            self._closing = _TAGS[tag]
        thinking = ""
        if self._state == "thinking":
            thinking, found, rest = self._held.partition(self._closing)
            if not found:
                held = next(n for n in range(len(self._closing), -1, -1) if thinking.endswith(self._closing[:n]))
                thinking, self._held = thinking[: len(thinking) - held], self._closing[:held]
                return thinking, ""
            self._state, self._held = "after", rest
        self._held = self._held.lstrip()
        return thinking, self._take_rest() if self._held else ""

    def finish(self) -> tuple[str, str]:
        """Take the end. Returns what was held, as thinking and as text."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)

    def _take_rest(self) -> str:
        rest, self._held, self._state = self._held, "", "text"
        return rest


_TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<|channel>thought\n": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
}
"""The tags of DeepSeek, Qwen, GLM and MiniMax; of Gemini's endpoint; of Mistral, Seed-OSS, Gemma 4 and gpt-oss."""
_MOST_HELD = 100
"""Characters after which white space at the beginning of a text is a part of it."""


_UNOPENED = re.compile(r"\n?</think>(?:\r?\n|$)")


def split_unopened_thinking(text: str) -> tuple[str, str] | None:
    """Split a text whose opening tag stands in the prompt, where some templates put it; None: it is no such text.

    The closing tag is the only one, ends a line, and stands in no block of code.
    """
    match = _UNOPENED.search(text) if text.count("</think>") == 1 and "<think>" not in text else None
    if match is None or text[: match.start()].count("```") % 2:
        return None
    return text[: match.start()].strip(), text[match.end() :].lstrip()


_BARS = r"[|\uff5c\u2016]{1,2}"
_CALL = re.compile(
    # Qwen and Hermes; Qwen's coders; GLM.
    r"<tool_call>\s{0,9}(?:\{|<function=|[\w.-]{1,64}\s{0,9}<arg_key>)"
    # Kimi; DeepSeek to V3.1, and from V3.2 on; Mistral.
    r"|<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>|<\uff5ctool\u2581calls\u2581begin\uff5c>"
    rf"|<{_BARS}DSML{_BARS}(?:tool_calls|function_calls|invoke)\b|\[TOOL_CALLS\]\s{{0,9}}[\w.-]{{0,64}}[\[{{]"
)
_CALL_END = re.compile(
    r"</tool_call>|<\|tool_call_end\|>|<\|tool_calls_section_end\|>|<\uff5ctool\u2581calls\u2581end\uff5c>"
    rf"|</{_BARS}DSML{_BARS}\w{{1,32}}>"
)


def ends_in_call(text: str) -> bool:
    """Whether a text ends in the call of a tool, as a model writes it: nothing follows its end, or it has none.

    A call within a block of code, or with words behind it, is what the model says about calls.
    """
    begins = [match.start() for match in _CALL.finditer(text)]
    if not begins or text[: begins[-1]].count("```") % 2:
        return False
    ends = [match.end() for match in _CALL_END.finditer(text, begins[-1])]
    return not ends or not text[ends[-1] :].strip()
