"""Folds the stream of Gemini's `streamGenerateContent` into a reply.

A reply's `provider_data` holds its parts in their order, as far as the API wants them back: parts with a signature,
the code that it has run with its result, calls of its own tools, and the texts before them. A part with an empty
`functionCall` is the place of the next tool call, one with an empty `inlineData` that of an image or a recording; the
signature and the id of a call are with the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import BadRequest, TruncatedStream, classify_event
from clew_activities.providers.reply import (
    MAX_CITATIONS,
    MAX_SOURCES,
    PROVIDER_DATA_LIMIT,
    SAMPLE_RATE,
    Call,
    DraftDecoder,
    StopReason,
    get_list,
    get_member,
    limit_id,
    list_objects,
    measure,
    parse_event,
    read_count,
    read_string,
)
from clew_activities.providers.sanitize import MAX_DEPTH, clean, clean_value, parse_json
from clew_workflows.contract.messages import ProviderData, Source
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

# ai.google.dev/api/generate-content#FinishReason
_STOP_REASONS: Mapping[str, StopReason] = {"MAX_TOKENS": "length", "CONTINUATION": "length"}
_REFUSED = frozenset(
    (
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
        "ESCALATION",
        "PUP_LIMITED_DISABLED",
    )
)
"""Reasons with which the API says that it has stopped the reply for its content."""
_BROKEN = frozenset(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"))
"""Reasons with which the API says that it could not use what the model wrote; another attempt may succeed."""
_KEPT = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts that go back as they came."""
_OTHERS = ("text", "functionCall", "pieces")
"""What such a part has not, and other blocks have."""
_SIGNATURE = "thoughtSignature"
_RAW_AUDIO = re.compile(r"audio/(?:l16|pcm)\b(?:.{0,100}\brate=([1-9][0-9]{3,4})\b)?")
"""The type of samples without a header, with their rate."""
_COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "cachedContentTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "totalTokenCount",
)
MAX_BLOCKS = 4096
"""Most parts in a reply's provider data; a reply with more has none."""
_REFUSAL_LIMIT = 4000


class PartialArguments:
    """Arguments that arrive in pieces, each with its place as a JSON path: `$.filter.names[0]`.

    Attributes:
        value: The arguments so far.
    """

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self._growing = ""

    def add(self, piece: Mapping[str, Any]) -> bool:
        """Take a piece of the arguments. Returns whether it has a place."""
        path = read_string(piece.get("jsonPath"))
        steps = _read_path(path)
        found = next((name for name in _VALUES if name in piece), None)
        if not steps or not isinstance(steps[0], str):
            return False
        value = None if found in (None, "nullValue") else piece[found]
        holder: Any = self.value
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            if not _has_place(holder, step):
                return False
            if isinstance(step, int) and step == len(holder):
                holder.append(None)
            if after is None:
                known = holder[step] if isinstance(step, int) or step in holder else None
                is_more = path == self._growing and isinstance(known, str) and isinstance(value, str)
                holder[step] = f"{known}{value}" if is_more else value
            else:
                if (isinstance(step, str) and step not in holder) or holder[step] is None:
                    holder[step] = [] if isinstance(after, int) else {}
                holder = holder[step]
        self._growing = path if piece.get("willContinue") else ""
        return True


def _has_place(holder: Any, step: int | str) -> bool:
    """Whether a value has a place for a step of a path. A list grows by one."""
    return isinstance(holder, list) and step <= len(holder) if isinstance(step, int) else isinstance(holder, dict)


_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")
_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d{1,4})\]|\[\'([^\']*)\'\]|\["([^"]*)"\]""")


def _read_path(path: str) -> list[str | int]:
    """Read the steps of a JSON path; none: it is not of the form that the API documents."""
    steps: list[str | int] = []
    place = 1 if path.startswith("$") else len(path) + 1
    while place < len(path) and (match := _STEP.match(path, place)):
        steps.append(int(match[2]) if match[2] else match[1] or match[3] or match[4] or "")
        place = match.end()
    return steps if place == len(path) and len(steps) <= MAX_DEPTH else []


class GoogleDecoder(DraftDecoder):
    """Folds `GenerateContentResponse` objects, or a list of them."""

    def __init__(self, provider: str = "google", model: str = "", tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._blocks: list[dict[str, Any]] = []
        self._left = PROVIDER_DATA_LIMIT
        self._counts: dict[str, int] = {}
        self._queries: dict[str, None] = {}
        self._grounding: Mapping[str, Any] = {}
        self._fetched: dict[str, str] = {}
        self._code: str | None = None
        self._is_complete = False
        self._growing: tuple[Call, PartialArguments] | None = None
        self._calls_by_id: dict[tuple[str, str], Call] = {}

    def feed(self, event: str, data: str) -> None:
        """Fold one event.

        Raises:
            ProviderError: The event is an error, or says that the request was refused.
            TruncatedStream: The event cannot be parsed, or the API could not use what the model wrote.
        """
        if data.strip() == "[DONE]":
            self.ended = True
            return
        # Without `alt=sse` the reply is a list of chunks.
        chunks = parse_json(data) if data.lstrip().startswith("[") else None
        for chunk in chunks if isinstance(chunks, list) else (parse_event(data),):
            if isinstance(chunk, dict):
                self._feed_chunk(event, chunk)

    def _feed_chunk(self, event: str, chunk: Mapping[str, Any]) -> None:
        if event == "error" or chunk.get("error"):
            raise classify_event(chunk)
        self._count(chunk.get("usageMetadata"))
        feedback = chunk.get("promptFeedback")
        if reason := read_string(get_member(feedback, "blockReason")):
            message = read_string(get_member(feedback, "blockReasonMessage"))
            self._refuse(f"the prompt was blocked: {reason}", message)
            self.refuses_prompt = True
        for candidate in list_objects(chunk, "candidates"):
            # Requests ask for one candidate; ignore further ones.
            if candidate.get("index", 0) == 0:
                self._feed_candidate(candidate)

    def _feed_candidate(self, candidate: Mapping[str, Any]) -> None:
        for part in list_objects(candidate.get("content"), "parts"):
            self._add_part(part)
        self._note_grounding(candidate.get("groundingMetadata"))
        for page in list_objects(candidate.get("urlContextMetadata"), "urlMetadata"):
            if url := read_string(page.get("retrievedUrl")):
                self._fetched[url] = read_string(page.get("urlRetrievalStatus"))
        self._stop(read_string(candidate.get("finishReason")), read_string(candidate.get("finishMessage")))

    def _add_part(self, part: Mapping[str, Any]) -> None:
        signature = read_string(part.get(_SIGNATURE))
        if isinstance(function := part.get("functionCall"), dict):
            self._add_call(function, signature)
            return
        if any(isinstance(part.get(name), dict) for name in _KEPT):
            self._add_block({name: value for name, value in part.items() if name not in _OTHERS})
            self._note_tool(part)
            return
        if isinstance(data := part.get("inlineData"), dict):
            # Of a thought it is a sketch.
            if not part.get("thought"):
                self._add_inline(data, signature)
            return
        text = read_string(part.get("text"))
        if part.get("thought"):
            self.add_thinking(text)
            # The API does not want a thought without a signature back.
            if signature:
                self._add_block({"text": text, "thought": True, _SIGNATURE: signature})
            return
        self.add_text(text)
        # "Don't merge a part with a signature with one without."
        if signature:
            self._add_block({"text": text, _SIGNATURE: signature})
        elif text and self._blocks and "pieces" in self._blocks[-1]:
            self._left -= len(text)
            self._blocks[-1]["pieces"].append(text)
        elif text:
            self._add_block({"pieces": [text]})

    def _add_inline(self, data: Mapping[str, Any], signature: str) -> None:
        """Take an image or a recording. Its place among the parts is kept with its signature."""
        media_type = read_string(data.get("mimeType")).lower()
        if media_type.startswith("image/"):
            self.add_media("image", data.get("data"))
        elif media_type.startswith("audio/"):
            raw = _RAW_AUDIO.match(media_type)
            rate = int(raw[1] or SAMPLE_RATE) if raw else None
            self.add_media("audio", data.get("data"), rate=rate, extends=rate is not None)
        if signature:
            self._add_block({"inlineData": {}, _SIGNATURE: signature})

    def _add_call(self, function: Mapping[str, Any], signature: str) -> None:
        """Take a call. Vertex AI may send its arguments in pieces; some gateways send a call twice."""
        call_id, name = read_string(function.get("id")), read_string(function.get("name"))
        if self._growing is not None and (not name or "partialArgs" in function) and not function.get("args"):
            self._grow(function, signature)
            return
        if (known := self._calls_by_id.get((call_id, name))) and call_id:
            arguments = json.dumps(function.get("args") or {})
            if known.repeats(arguments) or arguments == "{}":
                return
            if not known.raw.so_far:
                # The first time it came without its arguments.
                self.add_arguments(known, function.get("args"))
                return
        call = self.open_call(call_id, name)
        if call is None:
            return
        self._calls_by_id[call_id, name] = call
        if signature:
            call.own[_SIGNATURE] = signature
        self._add_block({"functionCall": {}})
        if function.get("willContinue") or "partialArgs" in function:
            call.has_ended = False
            self._growing = (call, PartialArguments())
            self._grow(function, "")
        else:
            self.add_arguments(call, function.get("args"))

    def _grow(self, function: Mapping[str, Any], signature: str) -> None:
        """Take pieces of the arguments of the call that is arriving."""
        if self._growing is None:
            return
        call, arguments = self._growing
        if signature:
            call.own[_SIGNATURE] = signature
        for piece in list_objects(function, "partialArgs"):
            self._left -= measure(piece)
            if self._left < 0 or not arguments.add(piece):
                self.break_reply("the server sent a piece of arguments that has no place")
                return
        if not function.get("willContinue"):
            call.has_ended = True
            self.add_arguments(call, arguments.value)
            self._growing = None

    def _note_tool(self, part: Mapping[str, Any]) -> None:
        """Note what the API's own tools have done."""
        if code := get_member(part.get("executableCode"), "code"):
            self._add_code()
            self._code = read_string(code)
        if isinstance(result := part.get("codeExecutionResult"), dict):
            outcome = read_string(result.get("outcome")) or "OUTCOME_OK"
            self._add_code(read_string(result.get("output")), None if outcome == "OUTCOME_OK" else outcome)
        call = part.get("toolCall")
        queries = get_member(get_member(call, "args"), "queries")
        if get_member(call, "toolType") == "GOOGLE_SEARCH_WEB" and isinstance(queries, list):
            self._queries |= dict.fromkeys(map(read_string, queries))

    def _add_code(self, output: str | None = None, error: str | None = None) -> None:
        """Take the code that was run, with its result."""
        if self._code is not None or output or error:
            self.add_provider_call("code_execution", input=self._code, output=output, error=error)
        self._code = None

    def _note_grounding(self, metadata: object) -> None:
        if not isinstance(metadata, dict):
            return
        self._queries |= dict.fromkeys(map(read_string, get_list(metadata, "webSearchQueries")))
        # Each has all that is known: the newest one counts.
        if metadata.get("groundingChunks"):
            self._grounding = metadata

    def _stop(self, reason: str, message: str) -> None:
        if not reason or reason == "FINISH_REASON_UNSPECIFIED":
            return
        if reason in _BROKEN:
            raise TruncatedStream(": ".join(filter(None, (f"the provider ended the reply with {reason}", message))))
        if reason == "MISSING_THOUGHT_SIGNATURE":
            raise BadRequest(": ".join(filter(None, (f"the provider ended the reply with {reason}", message))))
        if reason in _REFUSED:
            self._refuse(f"the provider stopped the reply: {reason}", message)
        self.stop_reason = _STOP_REASONS.get(reason, "stop")

    def _refuse(self, reason: str, message: str) -> None:
        self.refusal = clean(": ".join(filter(None, (reason, message))))[:_REFUSAL_LIMIT]

    def _count(self, usage: object) -> None:
        """Store token counts. Each is of the complete reply so far; some chunks leave some of them out."""
        if not isinstance(usage, dict):
            return
        for name in _COUNTS:
            if (count := read_count(usage.get(name))) is not None:
                self._counts[name] = max(count, self._counts.get(name, 0))
        get = self._counts.get
        prompt = get("promptTokenCount", 0) + get("toolUsePromptTokenCount", 0)
        output = get("candidatesTokenCount", 0) + get("thoughtsTokenCount", 0)
        self.usage = Usage(
            input_tokens=prompt,
            output_tokens=max(output, get("totalTokenCount", 0) - prompt) if prompt else output,
            cached_input_tokens=min(get("cachedContentTokenCount", 0), prompt),
        )

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if not self._is_complete:
            self._is_complete = True
            self._add_code()
            self._add_searches()
        return super().finish()

    def _add_searches(self) -> None:
        """Take the searches, their sources and what the text has from them; and the pages that were read."""
        chunks = [get_member(chunk, "web") for chunk in get_list(self._grounding, "groundingChunks")]
        sources = [
            Source(url=read_string(get_member(web, "uri")), title=read_string(get_member(web, "title")))
            for web in chunks
        ]
        found = [source for source in sources if source["url"]]
        # The API does not say which query has found a page, so the first one has them all.
        for number, query in enumerate(filter(None, self._queries)):
            self.add_provider_call("web_search", input=query, sources=() if number else found)
        for url, status in self._fetched.items():
            failed = status not in ("", "URL_RETRIEVAL_STATUS_SUCCESS")
            self.add_provider_call("web_fetch", input=url, sources=[{"url": url}], error=status if failed else None)
        text = self.text
        data = text.encode("utf-8", "replace")
        for support in list_objects(self._grounding, "groundingSupports")[:MAX_CITATIONS]:
            start, end = _find_segment(text, data, support.get("segment"))
            for index in get_list(support, "groundingChunkIndices")[:MAX_SOURCES]:
                if isinstance(index, int) and 0 <= index < len(sources):
                    source = sources[index]
                    self.add_citation(source["url"], source.get("title"), start=start, end=end)

    def make_provider_data(self) -> ProviderData | None:
        """Make what the API wants back; None: there is nothing, or too much."""
        calls = [({"id": limit_id(call.id)} if call.id else {}) | call.own for call in self.calls]
        blocks = self._list_blocks()
        if not blocks and not any(calls):
            return None
        try:
            blocks, calls = clean_value([blocks, calls])
            size = len(json.dumps([blocks, calls], ensure_ascii=False).encode())
        except (ValueError, RecursionError):
            return None
        data: ProviderData = {"provider": self._provider, "model": self._model, "blocks": blocks}
        if any(calls):
            data["calls"] = calls
        return data if size <= PROVIDER_DATA_LIMIT else None

    def _list_blocks(self) -> list[dict[str, Any]]:
        """List the parts up to the last one that is more than a plain text; none if the message has all of them."""
        if len(self._blocks) > MAX_BLOCKS or self._left < 0:
            return []
        plain = ["functionCall" in block for block in self._blocks if "functionCall" in block or "pieces" in block]
        if len(plain) == len(self._blocks) and plain == sorted(plain):
            return []
        last = max((index for index, block in enumerate(self._blocks) if "pieces" not in block), default=-1)
        return [
            {"text": "".join(block["pieces"])} if "pieces" in block else block for block in self._blocks[: last + 1]
        ]

    def _add_block(self, block: dict[str, Any]) -> None:
        self._left -= measure(block)
        if len(self._blocks) <= MAX_BLOCKS and self._left >= 0:
            self._blocks.append(block)


def _find_segment(text: str, data: bytes, segment: object) -> tuple[int | None, int | None]:
    """Find the characters of a segment, whose indices count bytes of the text in UTF-8; None: it is not in it."""
    start, end = read_count(get_member(segment, "startIndex")) or 0, read_count(get_member(segment, "endIndex"))
    words = read_string(get_member(segment, "text"))
    if end is not None and start <= end <= len(data):
        cut = data[start:end].decode("utf-8", "ignore")
        if not words or cut == words:
            first = len(data[:start].decode("utf-8", "ignore"))
            return first, first + len(cut)
    if words and (found := text.find(words)) >= 0:
        return found, found + len(words)
    return None, None
