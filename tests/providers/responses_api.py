"""OpenAI's Responses: its streams, its errors, and what it refuses. The official package's types check both sides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

from tests.providers.chat_completions import make_error, make_id, make_signature
from tests.providers.chat_rules import (
    demand_key,
    follow_strict_mode,
    have_object_schemas,
    limit_tools,
    name_tools,
    refuse_empty_tools,
    refuse_when,
)
from tests.providers.official_types import build_event, match_type
from tests.providers.strict_server import DROP, Billing, Exchange, Refusal, Rule, Sent, ServerSentEvents, Turn

Item = dict[str, Any]
_MADE = ("reasoning", "message", "function_call", "web_search_call")
_PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_", "web_search_call": "ws_"}


@dataclass(frozen=True)
class ResponsesApi(ServerSentEvents):
    """Responses, of one family of models.

    Attributes:
        efforts: The levels of reasoning that the model takes; none: it does not reason.
        phases: Whether its messages have a phase.
        path: The path of a request.
        cut_reason: The status of a reply that the token limit cuts.
    """

    efforts: tuple[str, ...] = ()
    phases: bool = False
    path: str = "/responses"
    cut_reason: str = "incomplete"

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        return make_error(refusal)

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply as the events of its items."""
        body = exchange.body
        thinking = thinking if self.efforts and (body.get("reasoning") or {}).get("effort") != "none" else ""
        items = self._make_items(turn, exchange, thinking)
        events = _Events(body)
        events.add("response.created", response=events.make_response("in_progress"))
        events.add("response.in_progress", response=events.make_response("in_progress"))
        for index, item in enumerate(items):
            events.add_item(index, item)
        middle = len(events.all) - 3
        is_cut = turn.ending == "length"
        usage = {
            "input_tokens": billing.input_tokens,
            "input_tokens_details": {"cached_tokens": billing.input_tokens // 2, "cache_write_tokens": 0},
            "output_tokens": billing.output_tokens,
            "output_tokens_details": {"reasoning_tokens": len(thinking) // 4},
            "total_tokens": billing.input_tokens + billing.output_tokens,
        }
        if turn.fault and turn.fault.when == "inside":
            del events.all[middle:]
            error = {"code": "server_error", "message": "An error occurred while processing your request."}
            events.add("response.failed", response=events.make_response("failed", error=error))
            return events.all, Sent()
        details = {"reason": "max_output_tokens"} if is_cut else None
        status = "incomplete" if is_cut else "completed"
        response = events.make_response(status, output=items, usage=usage, incomplete_details=details)
        events.add(f"response.{status}", response=response)
        sent: list[Any] = events.all
        match turn.fault.when if turn.fault else None:
            case "cut":
                sent = [*sent[:middle], DROP]
            case "after":
                sent = [*sent, DROP]
        calls = [item for item in items if item["type"] == "function_call"]
        names = {call["call_id"]: call["name"] for call in calls}
        returns = {"items": items, "model": body["model"]}
        return sent, Sent(thinking, returns, {call_id: {} for call_id in names}, turn.text, names)

    def _make_items(self, turn: Turn, exchange: Exchange, thinking: str) -> list[Item]:
        number = sum(len(sent.returns.get("items", ())) for sent in exchange.sent) + len(exchange.sent)
        include, status = exchange.body.get("include") or (), "completed"
        items: list[Item] = []

        def add(kind: str, **fields: Any) -> None:
            place = number + len(items)
            items.append({"id": make_id(_PREFIXES[kind], 48)(place, ""), "type": kind, **fields})

        def think(text: str) -> None:
            has_summary = bool((exchange.body.get("reasoning") or {}).get("summary"))
            summary = [{"type": "summary_text", "text": part} for part in _halve(text)] if has_summary else []
            encrypted = "reasoning.encrypted_content" in include
            sealed = {"encrypted_content": make_signature(number + len(items))} if encrypted else {}
            add("reasoning", summary=summary, **sealed)

        if thinking:
            think(thinking)
        for place, query in enumerate(turn.searches, 1):
            sources = [{"type": "url", "url": f"https://example.com/{place}"}]
            has_sources = "web_search_call.action.sources" in include
            action = {"type": "search", "query": query, "queries": [query]}
            add("web_search_call", status=status, action=action | ({"sources": sources} if has_sources else {}))
            if thinking:
                think(f"{thinking} and on")
        if turn.text:
            notes = [
                {
                    "type": "url_citation",
                    "url": f"https://example.com/{place}",
                    "title": f"Example {place}",
                    "start_index": 0,
                    "end_index": len(turn.text),
                }
                for place, _ in enumerate(turn.searches, 1)
            ]
            content = [{"type": "output_text", "text": turn.text, "annotations": notes, "logprobs": []}]
            phase = {"phase": "commentary" if turn.calls else "final_answer"} if self.phases else {}
            ends = "incomplete" if turn.ending == "length" and not turn.calls else status
            add("message", role="assistant", status=ends, content=content, **phase)
        made = sum(len(sent.calls) for sent in exchange.sent)
        for place, call in enumerate(turn.calls):
            raw = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
            ends = "incomplete" if turn.ending == "length" and place == len(turn.calls) - 1 else status
            call_id = make_id("call_", 24)(made + place, call.name)
            add("function_call", status=ends, call_id=call_id, name=call.name, arguments=raw)
        return items


class _Events:
    """The events of a reply, each checked by the official type.

    Attributes:
        all: The events so far.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.all: list[Any] = []
        self._body = body

    def add(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": len(self.all), **fields}
        build_event(ResponseStreamEvent, event)
        self.all.append(event)

    def make_response(self, status: str, **fields: Any) -> dict[str, Any]:
        empty: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": self._body["model"],
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            **empty,
            **fields,
        }

    def add_item(self, index: int, item: Item) -> None:
        """Add the events of an item. What is encrypted may be incomplete until the item is done."""
        place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        start = {**item, **({"status": "in_progress"} if "status" in item else {})}
        match item["type"]:
            case "reasoning":
                start |= {"summary": []} | ({"encrypted_content": "gAAA"} if "encrypted_content" in item else {})
            case "message":
                start["content"] = []
            case "function_call":
                start["arguments"] = ""
            case "web_search_call":
                start["action"] = {"type": "search", "query": ""}
        self.add("response.output_item.added", output_index=index, item=start)
        match item["type"]:
            case "reasoning":
                self._add_summary(place, item)
            case "message":
                self._add_content(place, item)
            case "function_call":
                for piece in _halve(item["arguments"]):
                    self.add("response.function_call_arguments.delta", **place, delta=piece)
                if item["status"] == "completed":
                    fields = {"arguments": item["arguments"], "name": item["name"]}
                    self.add("response.function_call_arguments.done", **place, **fields)
            case "web_search_call":
                for step in ("in_progress", "searching", "completed"):
                    self.add(f"response.web_search_call.{step}", **place)
        self.add("response.output_item.done", output_index=index, item=item)

    def _add_summary(self, place: Mapping[str, Any], item: Item) -> None:
        for index, part in enumerate(item["summary"]):
            empty = {"type": "summary_text", "text": ""}
            at = {**place, "summary_index": index}
            self.add("response.reasoning_summary_part.added", **at, part=empty)
            for piece in _halve(part["text"]):
                self.add("response.reasoning_summary_text.delta", **at, delta=piece)
            self.add("response.reasoning_summary_text.done", **at, text=part["text"])
            self.add("response.reasoning_summary_part.done", **at, part=part)

    def _add_content(self, place: Mapping[str, Any], item: Item) -> None:
        for index, part in enumerate(item["content"]):
            at = {**place, "content_index": index}
            empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.add("response.content_part.added", **at, part=empty)
            for piece in _halve(part["text"]):
                self.add("response.output_text.delta", **at, delta=piece, logprobs=[], obfuscation="x7Yq")
            for number, note in enumerate(part["annotations"]):
                self.add("response.output_text.annotation.added", **at, annotation_index=number, annotation=note)
            self.add("response.output_text.done", **at, text=part["text"], logprobs=[])
            self.add("response.content_part.done", **at, part=part)


def _halve(text: str) -> list[str]:
    half = len(text) // 2
    return [piece for piece in (text[:half], text[half:]) if piece]


# What the API refuses


def _refuse_input(message: str, **fields: Any) -> Refusal:
    return Refusal(message, param="input", **fields)


def _find_item(exchange: Exchange, item_id: str) -> tuple[Sent, int] | None:
    """Find the reply that has an item, and the item's place; None: another server's."""
    for sent in exchange.sent:
        for place, item in enumerate(sent.returns.get("items", ())):
            if item["id"] == item_id:
                return sent, place
    return None


def know_items(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse items that are references to what the server has not stored."""
    for item in exchange.body["input"]:
        kind, item_id = item.get("type"), item.get("id")
        if kind not in _MADE or item_id is None:
            continue
        if not item_id.startswith(_PREFIXES[kind]):
            # gh:jlcodes99/cockpit-tools#2090
            yield _refuse_input(
                f"Invalid 'input[0].id': '{item_id}'. Expected an ID that begins with '{_PREFIXES[kind][:-1]}'."
            )
        if _find_item(exchange, item_id) is None or (kind == "reasoning" and "encrypted_content" not in item):
            # gh:vercel/ai#7543, gh:continuedev/continue#9101
            yield _refuse_input(
                f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. Try "
                "again with `store` set to true, or remove this item from your input.",
                status=404,
            )


def verify_reasoning(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse reasoning that was changed, or that another model has made."""
    for item in exchange.body["input"]:
        if item.get("type") != "reasoning" or "encrypted_content" not in item:
            continue
        found = _find_item(exchange, item["id"])
        sealed = found and found[0].returns["items"][found[1]].get("encrypted_content")
        if not found or item["encrypted_content"] != sealed or found[0].returns["model"] != exchange.body["model"]:
            # gh:Wei-Shaw/sub2api#3138
            yield _refuse_input(
                f"The encrypted content for item {item['id']} could not be verified. Reason: Encrypted content could "
                "not be decrypted or parsed.",
                code="invalid_encrypted_content",
            )


def keep_reasoning_in_place(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse reasoning without the item after it, and items without the reasoning before them."""
    items = exchange.body["input"]
    for index, item in enumerate(items):
        after = items[index + 1] if index + 1 < len(items) else {}
        is_own = after.get("type") in ("reasoning", "function_call", "web_search_call") or (
            after.get("role") == "assistant"
        )
        if item.get("type") == "reasoning" and not is_own:
            # gh:vercel/ai#7099, gh:continuedev/continue#8933
            yield _refuse_input(
                f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            )
        found = _find_item(exchange, item.get("id") or "")
        if item.get("type") not in _MADE or item["type"] == "reasoning" or not found:
            continue
        sent, place = found
        thoughts = [one["id"] for one in sent.returns["items"][:place] if one["type"] == "reasoning"]
        known = {one.get("id") for one in items[:index]}
        if thoughts and thoughts[-1] not in known:
            # gh:0xPlaygrounds/rig#751
            yield _refuse_input(
                f"Item '{item['id']}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                f"'{thoughts[-1]}'."
            )


def pair_calls(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse calls without an output, and outputs without a call before them."""
    calls: list[str] = []
    answered: list[str] = []
    for index, item in enumerate(exchange.body["input"]):
        if item.get("type") not in ("function_call", "function_call_output"):
            continue
        call_id = item["call_id"]
        if not 1 <= len(call_id) <= 64:
            # gh:AnswerDotAI/fastllm#45
            yield _refuse_input(
                f"Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length 64, but "
                f"got a string with length {len(call_id)} instead.",
                code="string_above_max_length",
            )
        if item["type"] == "function_call":
            calls.append(call_id)
            continue
        if call_id not in calls:
            # gh:can1357/oh-my-pi#106, gh:continuedev/continue#10092
            yield _refuse_input(f"No tool call found for function call output with call_id {call_id}.")
        answered.append(call_id)
    for call_id in calls:
        if call_id not in answered:
            # gh:router-for-me/CLIProxyAPI#2368
            yield _refuse_input(f"No tool output found for function call {call_id}.")
    if len(set(calls)) < len(calls) or len(set(answered)) < len(answered):
        yield _refuse_input(f"the ids of calls are not unique: {calls}, {answered}")


def name_calls(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse earlier calls with a name of another form, or with arguments that are not JSON."""
    for index, item in enumerate(exchange.body["input"]):
        if item.get("type") != "function_call":
            continue
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["name"]):
            yield _refuse_input(
                f"Invalid 'input[{index}].name': string does not match pattern. Expected a string that matches the "
                "pattern '^[a-zA-Z0-9_-]+$'.",
                code="invalid_value",
            )
        try:
            is_object = isinstance(json.loads(item["arguments"]), dict)
        except ValueError:
            is_object = False
        if not is_object:
            yield _refuse_input(f"Invalid 'input[{index}].arguments': not the JSON text of an object")


def choose_known_tool(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse a forced tool that the request does not have."""
    choice = exchange.body.get("tool_choice")
    names = [tool.get("name") for tool in exchange.body.get("tools") or ()]
    if isinstance(choice, dict) and choice.get("name") not in names:
        yield Refusal(f"Tool choice '{choice.get('name')}' not found in 'tools' parameter.", param="tool_choice")


def _refuse_schema(index: int, tool: Mapping[str, Any], problem: str) -> Refusal:
    return Refusal(
        f"Invalid schema for function '{tool['name']}': {problem}",
        param=f"tools[{index}].parameters",
        code="invalid_function_parameters",
    )


def take_options(efforts: tuple[str, ...], model: str) -> Rule:
    """Make the rule of the options that a model takes."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        body = exchange.body
        effort = (body.get("reasoning") or {}).get("effort")
        if efforts and effort not in (None, *efforts):
            listed = ", ".join(map(repr, efforts))
            # gh:openai/openai-agents-python#2089
            yield Refusal(
                f"Unsupported value: '{effort}' is not supported with the '{model}' model. Supported values are: "
                f"{listed}.",
                param="reasoning.effort",
                code="unsupported_value",
            )
        if not efforts and effort is not None:
            # gh:BoundaryML/baml#2708
            yield Refusal(
                "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
                param="reasoning.effort",
                code="unsupported_parameter",
            )
        if not efforts and "reasoning.encrypted_content" in (body.get("include") or ()):
            # gh:OpenHands/software-agent-sdk#1208
            yield Refusal("Encrypted content is not supported with this model.", param="include")
        for name in ("temperature", "top_p"):
            if efforts and effort != "none" and name in body:
                # gh:griptape-ai/griptape#1915
                yield Refusal(
                    f"Unsupported parameter: '{name}' is not supported with this model.",
                    param=name,
                    code="unsupported_parameter",
                )
        if not efforts and (body.get("text") or {}).get("verbosity") not in (None, "medium"):
            # gh:google-deepmind/concordia#164, gh:enricoros/big-AGI#947
            yield Refusal(
                "Unsupported value: 'verbosity' does not support 'low' with this model. Supported values are: "
                "'medium'.",
                param="text.verbosity",
                code="unsupported_value",
            )
        if body.get("max_output_tokens", 16) < 16:
            # gh:vectorize-io/hindsight#58
            yield Refusal(
                "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got "
                f"{body['max_output_tokens']} instead.",
                param="max_output_tokens",
                code="integer_below_min_value",
            )
        if "seed" in body or "stop" in body:
            yield Refusal("Unknown parameter: 'stop'.", param="stop", code="unknown_parameter")

    return rule


def make_rules(efforts: tuple[str, ...], model: str) -> tuple[Rule, ...]:
    """Make what the API refuses, for a model that takes these levels of reasoning."""
    return (
        demand_key,
        match_type(ResponseCreateParamsStreaming, "Unknown parameter: '{}'."),
        refuse_when(lambda body: not body["input"], 'One of "input" or "previous_response_id" must be provided.'),
        refuse_when(lambda body: body.get("store") is not False, "the replies of this session would be stored"),
        know_items,
        verify_reasoning,
        keep_reasoning_in_place,
        pair_calls,
        name_calls,
        choose_known_tool,
        take_options(efforts, model),
        # gh:0x4m4/hexstrike-ai#29
        limit_tools(
            128,
            "Invalid 'tools': array too long. Expected an array with maximum length {most}, but got an array with "
            "length {count} instead.",
            code="array_above_max_length",
        ),
        name_tools(
            r"[a-zA-Z0-9_-]{1,64}",
            "Invalid 'tools[{index}].name': string does not match pattern. Expected a string that matches the "
            "pattern '^[a-zA-Z0-9_-]+$'.",
            code="invalid_value",
        ),
        have_object_schemas(_refuse_schema),
        follow_strict_mode,
        refuse_empty_tools("[] is too short - 'tools'"),
    )


# What the API takes although something is lost


def return_items(exchange: Exchange) -> Iterator[Refusal]:
    """Say that the items of a reply with calls are missing, changed or in another order."""
    items = exchange.body["input"]
    received = {item["call_id"] for item in items if item.get("type") == "function_call"}
    for sent in exchange.sent:
        own = sent.returns.get("items", ())
        if not sent.calls or not set(sent.calls) <= received or sent.returns["model"] != exchange.body["model"]:
            continue
        ids = {item["id"] for item in own}
        # The API gives calls names that it does not take back.
        renamed = {item["id"] for item in own if not _NAME.fullmatch(item.get("name", "named"))}
        back, expected = (
            [_compare(item, named=item["id"] not in renamed) for item in some if item.get("id") in ids]
            for some in (items, own)
        )
        if back != expected:
            yield Refusal(f"the items were {own} and came back as {back}")


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _compare(item: Item, *, named: bool) -> Item:
    """Leave out of an item what does not count: its status, its arguments' form, and, unless `named`, its name."""
    kept = {name: value for name, value in item.items() if name != "status" and value is not None}
    if item["type"] == "function_call":
        try:
            kept["arguments"] = json.loads(item["arguments"])
        except ValueError:
            # It was cut.
            kept["arguments"] = {}
        if not named:
            del kept["name"]
    if item["type"] == "message":
        kept["content"] = [{n: v for n, v in part.items() if n != "logprobs"} for part in item["content"]]
    return kept


def keep_ids(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a call of this server has another id than the server gave it."""
    received = {item["call_id"] for item in exchange.body["input"] if item.get("type") == "function_call"}
    own = {call_id for sent in exchange.sent for call_id in sent.calls}
    if len(received) >= len(own) and (lost := own - received):
        yield Refusal(f"the ids {sorted(lost)} came back as {sorted(received - own)}")


def keep_phases(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a message of the assistant's has no phase."""
    for index, item in enumerate(exchange.body["input"]):
        if item.get("role") == "assistant" and item.get("phase") not in ("commentary", "final_answer"):
            yield Refusal(f"input[{index}] has no phase")


LOSSES: tuple[Rule, ...] = (return_items, keep_ids)
