"""What servers of Chat Completions refuse: messages and their order, ids, tools and their schemas, options.

Each function makes a rule. The words are the real servers'; the comments say where a rule is from if it is not in the
server's documentation (`gh:owner/repository#number` is an issue or a pull request at GitHub).
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jsonschema_rs

from tests.providers.strict_server import Exchange, Refusal, Rule

Message = dict[str, Any]


# Fields


def iterate_objects(body: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, ...], Mapping[str, Any]]]:
    """List the objects of a request: what each is, where it is, and the object."""
    yield "body", (), body
    for index, message in enumerate(body["messages"]):
        yield f"message:{message['role']}", ("messages", index), message
        for number, call in enumerate(message.get("tool_calls") or ()):
            yield "call", ("messages", index, "tool_calls", number), call
            yield "call.function", ("messages", index, "tool_calls", number, "function"), call["function"]
    for index, tool in enumerate(body.get("tools") or ()):
        yield "tool", ("tools", index), tool
        yield "tool.function", ("tools", index, "function"), tool["function"]


def know_fields(known: Mapping[str, Collection[str]], refuse: Callable[[str, tuple[Any, ...], str], Refusal]) -> Rule:
    """Refuse fields that are not known. An object that `known` does not name may have any.

    Args:
        known: The fields of each kind of object.
        refuse: Makes the refusal from the kind, the place and the field.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for kind, place, value in iterate_objects(exchange.body):
            if kind in known:
                for name in value.keys() - set(known[kind]):
                    yield refuse(kind, place, name)

    return rule


def refuse_fields(names: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse these fields of the body; `{}` in the message is the name."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for name in sorted(exchange.body.keys() & set(names)):
            yield Refusal(message.format(name), param=name, **fields)

    return rule


def demand_key(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse requests without the key."""
    if exchange.headers.get("authorization", "") != "Bearer key-of-the-tests":
        yield Refusal("Incorrect API key provided", status=401, code="invalid_api_key")


# Messages


def know_roles(roles: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse other roles."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, one in enumerate(exchange.body["messages"]):
            if one["role"] not in roles:
                yield Refusal(message.format(index=index, role=one["role"]), **fields)

    return rule


def answer_calls(
    missing: str = "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: {}",
    orphan: str = "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls'.",
    twice: str | None = "Invalid parameter: Duplicate value for 'tool_call_id' of '{}'",
    **fields: Any,
) -> Rule:
    """Refuse calls without a result right after them, and results without a call. `{}` is the ids."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        waiting: list[str] = []
        answered: list[str] = []
        for message in [*exchange.body["messages"], {"role": "end"}]:
            if message["role"] == "tool":
                call_id = message["tool_call_id"]
                if call_id in answered and twice:
                    yield Refusal(twice.format(call_id), **fields)
                elif call_id not in waiting:
                    yield Refusal(orphan, **fields)
                else:
                    waiting.remove(call_id)
                    answered.append(call_id)
                continue
            if waiting:
                yield Refusal(missing.format(", ".join(waiting)), **fields)
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            answered = []
            if len(set(waiting)) < len(waiting):
                yield Refusal(f"the ids of one message's calls are not unique: {waiting}", **fields)

    return rule


def have_unique_ids(exchange: Exchange) -> Iterator[Refusal]:
    """Say that ids are repeated in one request: results then belong to the wrong calls."""
    calls = [call["id"] for message in exchange.body["messages"] for call in message.get("tool_calls") or ()]
    for call_id, count in Counter(calls).items():
        if count > 1:
            yield Refusal(f"the id {call_id!r} stands for {count} calls")


def match_ids(pattern: str, message: str, **fields: Any) -> Rule:
    """Refuse ids of another form."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, one in enumerate(exchange.body["messages"]):
            ids = [call["id"] for call in one.get("tool_calls") or ()]
            ids += [one["tool_call_id"]] if one["role"] == "tool" else []
            for call_id in ids:
                if not re.fullmatch(pattern, call_id):
                    yield Refusal(message.format(index=index, id=call_id, length=len(call_id)), **fields)

    return rule


def get_own_ids(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a call of this server has another id than the server gave it, although the id is unique."""
    own = [call_id for sent in exchange.sent for call_id in sent.calls]
    expected = {call_id for call_id in own if own.count(call_id) == 1}
    texts = {sent.text for sent in exchange.sent if sent.calls}
    received = {call["id"] for one in exchange.body["messages"] for call in one.get("tool_calls") or ()}
    history = sum(bool(one.get("tool_calls")) for one in exchange.body["messages"])
    # A context that was replaced or truncated has fewer calls; those of a cut reply are left out.
    if texts and history >= sum(bool(sent.calls) for sent in exchange.sent) and (lost := expected - received):
        yield Refusal(f"the ids {sorted(lost)} came back as {sorted(received - expected)}")


def have_content(message: str, *, null_with_calls: bool = True, empty: bool = True, **fields: Any) -> Rule:
    """Refuse messages without content.

    Args:
        message: `{index}` is the message's.
        null_with_calls: Whether null is taken beside tool calls.
        empty: Whether an empty text is taken.
        fields: The refusal's.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, one in enumerate(exchange.body["messages"]):
            content, calls = one.get("content"), one.get("tool_calls")
            if (content is None and not (calls and null_with_calls)) or (
                content in ("", []) and not empty and not calls
            ):
                yield Refusal(message.format(index=index), param=f"messages.[{index}].content", **fields)

    return rule


def have_content_or_calls(message: str, **fields: Any) -> Rule:
    """Refuse an assistant's message with neither text nor tool calls."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, one in enumerate(exchange.body["messages"]):
            if one["role"] == "assistant" and not one.get("content") and not one.get("tool_calls"):
                yield Refusal(message.format(index=index), **fields)

    return rule


def put_system_first(message: str, *, many: bool = False, **fields: Any) -> Rule:
    """Refuse a system message that is not the first, or not among the first with `many`."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        roles = [one["role"] for one in exchange.body["messages"]]
        allowed = len(roles) - len([*_drop_leading(roles)]) if many else 1
        for index, role in enumerate(roles):
            if role == "system" and index >= allowed:
                yield Refusal(message.format(before=roles[index - 1]), **fields)
                return

    return rule


def _drop_leading(roles: list[str]) -> Iterator[str]:
    leading = True
    for role in roles:
        leading = leading and role == "system"
        if not leading:
            yield role


def alternate(message: str, *, tools: bool, **fields: Any) -> Rule:
    """Refuse messages that do not alternate between user and assistant, after one system message.

    Args:
        message: The template's text.
        tools: Whether results count as a user's messages, and calls as an assistant's. Else neither counts.
        fields: The refusal's.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        messages: list[Message] = exchange.body["messages"]
        if messages and messages[0]["role"] == "system":
            messages = messages[1:]
        if tools:
            # Results in a row are one turn of the user.
            counted = [
                one
                for before, one in zip([None, *messages], messages, strict=False)
                if not (one["role"] == "tool" and before and before["role"] == "tool")
            ]
        else:
            counted = [one for one in messages if one["role"] != "tool" and not one.get("tool_calls")]
        for index, one in enumerate(counted):
            if (one["role"] in ("user", "tool")) != (index % 2 == 0):
                yield Refusal(message, **fields)
                return

    return rule


def follow_order(allowed: Mapping[str, Collection[str]], message: str, **fields: Any) -> Rule:
    """Refuse a role that may not follow the one before it."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        roles = [one["role"] for one in exchange.body["messages"]]
        for before, role in itertools.pairwise(roles):
            if before in allowed and role not in allowed[before]:
                yield Refusal(message.format(role=role, before=before), **fields)

    return rule


def end_with(roles: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse a request whose last message has another role."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if (role := exchange.body["messages"][-1]["role"]) not in roles:
            yield Refusal(message.format(role=role), **fields)

    return rule


def have_a_user(message: str, **fields: Any) -> Rule:
    """Refuse a request without a user's message."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if not any(one["role"] == "user" for one in exchange.body["messages"]):
            yield Refusal(message, **fields)

    return rule


def begin_with_user(message: str, **fields: Any) -> Rule:
    """Refuse a request whose first message, after those of the system, is not a user's."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        first = next((one["role"] for one in exchange.body["messages"] if one["role"] != "system"), "user")
        if first != "user":
            yield Refusal(message, **fields)

    return rule


def repeat_no_role(message: str, **fields: Any) -> Rule:
    """Refuse two messages in a row of a user or of an assistant."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        roles = [one["role"] for one in exchange.body["messages"]]
        for index, (before, role) in enumerate(itertools.pairwise(roles)):
            if before == role and role in ("user", "assistant"):
                yield Refusal(message.format(before=index, index=index + 1), **fields)

    return rule


def have_object_arguments(message: str, **fields: Any) -> Rule:
    """Refuse calls whose arguments are not the JSON text of an object."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for one in exchange.body["messages"]:
            for call in one.get("tool_calls") or ():
                try:
                    valid = isinstance(json.loads(call["function"]["arguments"]), dict)
                except ValueError:
                    valid = False
                if not valid:
                    yield Refusal(message.format(id=call["id"]), **fields)

    return rule


def keep_names(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a call of this server has another name than the server gave it, although the name is valid."""
    own = {call_id: name for sent in exchange.sent for call_id, name in sent.names.items()}
    for one in exchange.body["messages"]:
        for call in one.get("tool_calls") or ():
            name, back = own.get(call["id"]), call["function"]["name"]
            if name and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) and name != back:
                yield Refusal(f"the call of {name!r} came back as one of {back!r}")


def name_calls(pattern: str, message: str, **fields: Any) -> Rule:
    """Refuse earlier calls with a name of another form: models call tools that there are not."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, one in enumerate(exchange.body["messages"]):
            for call in one.get("tool_calls") or ():
                if not re.fullmatch(pattern, name := call["function"]["name"]):
                    yield Refusal(message.format(index=index, name=name), **fields)

    return rule


# What a provider has sent for itself


def return_thinking(
    field: str,
    message: str,
    *,
    current_turn: bool = False,
    empty: bool = True,
    without_calls: bool = False,
    **fields: Any,
) -> Rule:
    """Refuse an assistant's tool calls without the field of the thinking.

    Args:
        field: The name.
        message: `{index}` is the message's.
        current_turn: Whether it is needed only after the last user message.
        empty: Whether it may be empty.
        without_calls: Whether an assistant's messages without calls need the field, too.
        fields: The refusal's.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        messages = exchange.body["messages"]
        users = [index for index, one in enumerate(messages) if one["role"] == "user"]
        first = users[-1] if users and current_turn else 0
        for index, one in enumerate(messages[first:], first):
            is_there = isinstance(one.get(field), str) and (empty or one[field])
            if one["role"] == "assistant" and (one.get("tool_calls") or without_calls) and not is_there:
                yield Refusal(message.format(index=index), **fields)

    return rule


def return_unchanged(exchange: Exchange) -> Iterator[Refusal]:
    """Say that what this server sent for itself is missing or changed, in any later request that has the message.

    That of a text without tool calls may be left out, for example by DeepSeek's guide to its thinking mode. MiniMax
    would rather have it, in the text, and refuses nothing.
    """
    for index, one in enumerate(exchange.body["messages"]):
        if one["role"] != "assistant":
            continue
        calls = {call["id"]: call for call in one.get("tool_calls") or ()}
        sent = exchange.find_sent(calls)
        if sent is None and not calls:
            sent = next((s for s in exchange.sent if s.text and not s.calls and s.text == _read_text(one)), None)
        if sent is None:
            continue
        for name, value in sent.returns.items():
            if not sent.calls and (name not in one or one[name] in (None, "", sent.text)):
                continue
            if _merge_details(one.get(name)) != value:
                yield Refusal(f"messages[{index}].{name} was {value!r} and came back as {one.get(name)!r}")
        for call_id, owned in sent.calls.items():
            for name, value in owned.items():
                if call_id in calls and calls[call_id].get(name) != value:
                    back = calls[call_id].get(name)
                    yield Refusal(f"{name} of the call {call_id} was {value!r} and came back as {back!r}")


def _read_text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content.rpartition("</think>")[2].strip()
    return "".join(part.get("text", "") for part in content)


def _merge_details(value: Any) -> Any:
    """Merge consecutive pieces of `reasoning_details`, as OpenRouter takes both."""
    if not isinstance(value, list):
        return value
    merged: list[Any] = []
    for item in value:
        last = merged[-1] if merged else None
        if isinstance(item, dict) and last and item.get("type") == last.get("type") == "reasoning.text":
            merged[-1] = {**last, **item, "text": last["text"] + item["text"]}
        elif isinstance(item, dict) and last and item.get("type") == last.get("type") == "thinking":
            merged[-1] = {**last, **item} if item == last else last
        else:
            merged.append(item)
    return merged


def make_one_call(message: str, **fields: Any) -> Rule:
    """Refuse an assistant's message with more than one tool call."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if any(len(one.get("tool_calls") or ()) > 1 for one in exchange.body["messages"]):
            yield Refusal(message, **fields)

    return rule


# Tools


def get_tools(exchange: Exchange) -> list[dict[str, Any]]:
    """List the functions of a request's tools, without the tools of the server's own."""
    tools = exchange.body.get("tools") or ()
    return [tool.get("function", tool) for tool in tools if tool.get("type", "function") == "function"]


def limit_tools(most: int, message: str, **fields: Any) -> Rule:
    """Refuse more tools."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if (count := len(get_tools(exchange))) > most:
            yield Refusal(message.format(most=most, count=count), param="tools", **fields)

    return rule


def name_tools(pattern: str, message: str, **fields: Any) -> Rule:
    """Refuse tools with a name of another form, or with the name of another tool."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        names = [tool["name"] for tool in get_tools(exchange)]
        for index, name in enumerate(names):
            if not re.fullmatch(pattern, name):
                yield Refusal(message.format(index=index, name=name), **fields)
        if len(set(names)) < len(names):
            yield Refusal("Tool names must be unique.", **fields)

    return rule


def limit_descriptions(most: int, message: str, **fields: Any) -> Rule:
    """Refuse a tool with a longer description."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, tool in enumerate(get_tools(exchange)):
            if (length := len(tool.get("description") or "")) > most:
                yield Refusal(message.format(index=index, length=length, most=most), **fields)

    return rule


def refuse_empty_tools(message: str, **fields: Any) -> Rule:
    """Refuse a list of tools without any, and options of tools without tools."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        body = exchange.body
        if "tools" in body and not body["tools"]:
            yield Refusal(message, param="tools", **fields)
        for name in ("tool_choice", "parallel_tool_calls"):
            if name in body and not body.get("tools") and body[name] != "none":
                text = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
                yield Refusal(text, param=name, **fields)

    return rule


def have_object_schemas(
    refuse: Callable[[int, Mapping[str, Any], str], Refusal],
    *,
    combinators: Collection[str] = ("oneOf", "anyOf", "allOf", "enum", "not", "const"),
    properties: bool = True,
    items: bool = True,
) -> Rule:
    """Refuse tools whose schema does not have the form that the server wants.

    Args:
        refuse: Makes the refusal from the tool's index, the tool and the problem.
        combinators: The keywords that the root must not have.
        properties: Whether an object must have properties.
        items: Whether an array must have items.
    """

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for index, tool in enumerate(get_tools(exchange)):
            schema: dict[str, Any] = tool.get("parameters") or {}
            root = schema.get("type")
            if root != "object":
                text = f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {root or 'null'}'."
                yield refuse(index, tool, text)
                continue
            if found := sorted(schema.keys() & set(combinators)):
                text = f"schema must have type 'object' and not have {'/'.join(map(repr, found))} at the top level."
                yield refuse(index, tool, text)
            if properties and not isinstance(schema.get("properties"), dict):
                yield refuse(index, tool, "In context=(), object schema missing properties.")
            for place, part in iterate_schemas(schema):
                if items and is_type(part, "array") and "items" not in part and "prefixItems" not in part:
                    yield refuse(index, tool, f"In context={place}, array schema missing items.")

    return rule


def be_schemas(message: str, **fields: Any) -> Rule:
    """Refuse parameters that are not valid under Draft 7."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        for tool in get_tools(exchange):
            try:
                jsonschema_rs.Draft7Validator(tool.get("parameters") or {})
            except (jsonschema_rs.ValidationError, ValueError) as error:
                yield Refusal(message.format(str(error)[:200]), **fields)

    return rule


def is_type(schema: Mapping[str, Any], name: str) -> bool:
    """Whether a schema's type is, or has, this one."""
    kind = schema.get("type")
    return kind == name or (isinstance(kind, list) and name in kind)


def iterate_schemas(schema: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """List a schema and all that it contains, with the place of each."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        named = schema.get(key)
        if isinstance(named, dict):
            for name, part in named.items():
                yield from iterate_schemas(part, (*place, key, name))
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, part in enumerate(schema.get(key) or ()):
            yield from iterate_schemas(part, (*place, key, index))
    for key in ("items", "additionalProperties", "not", "if", "then", "else"):
        yield from iterate_schemas(schema.get(key), (*place, key))


def follow_strict_mode(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse what OpenAI refuses in the schema of a function, or of an answer, that is `strict`."""
    schemas = [(tool["name"], tool.get("parameters")) for tool in get_tools(exchange) if tool.get("strict")]
    form = (exchange.body.get("response_format") or {}).get("json_schema") or {}
    form = form or (exchange.body.get("text") or {}).get("format") or {}
    if form.get("strict"):
        schemas.append(("response_format", form.get("schema")))
    for name, schema in schemas:
        for place, part in iterate_schemas(schema):
            problem = None
            if is_type(part, "object"):
                required, properties = part.get("required", []), part.get("properties", {})
                if part.get("additionalProperties") is not False:
                    problem = "'additionalProperties' is required to be supplied and to be false."
                elif set(required) != set(properties):
                    problem = "'required' is required to be supplied and to be an array including every key."
            for keyword in ("allOf", "oneOf", "not", "if", "patternProperties"):
                if keyword in part:
                    problem = f"'{keyword}' is not permitted."
            if problem:
                text = f"Invalid schema for '{name}': In context={place}, {problem}"
                yield Refusal(text, code="invalid_function_parameters")


# Options


def limit_stops(most: int, message: str, **fields: Any) -> Rule:
    """Refuse more stop sequences."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        stop = exchange.body.get("stop")
        if isinstance(stop, list) and len(stop) > most:
            yield Refusal(message, param="stop", **fields)

    return rule


def take_formats(kinds: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse other types of `response_format`."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        form = exchange.body.get("response_format")
        if form and form["type"] not in kinds:
            yield Refusal(message.format(form["type"]), **fields)

    return rule


def format_without_tools(message: str, **fields: Any) -> Rule:
    """Refuse a response format beside tools."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if exchange.body.get("response_format") and exchange.body.get("tools"):
            yield Refusal(message, **fields)

    return rule


def say_json(message: str, **fields: Any) -> Rule:
    """Refuse the format `json_object` if no message has the word "json"."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        form = exchange.body.get("response_format") or {}
        texts = json.dumps([one.get("content") for one in exchange.body["messages"]])
        if form.get("type") == "json_object" and "json" not in texts.lower():
            yield Refusal(message, **fields)

    return rule


def choose_tools(choices: Collection[str], message: str, *, by_name: bool = True, **fields: Any) -> Rule:
    """Refuse other values of `tool_choice`."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        choice = exchange.body.get("tool_choice")
        if isinstance(choice, str) and choice not in choices:
            yield Refusal(message.format(choice), param="tool_choice", **fields)
        if isinstance(choice, dict) and (not by_name or choice.get("type") != "function"):
            yield Refusal(message.format(choice), param="tool_choice", **fields)

    return rule


def refuse_when(test: Callable[[dict[str, Any]], bool], message: str, **fields: Any) -> Rule:
    """Refuse a body that meets a condition."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        if test(exchange.body):
            yield Refusal(message, **fields)

    return rule


def take_efforts(levels: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse other levels of `reasoning_effort`."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        effort = exchange.body.get("reasoning_effort")
        if effort is not None and effort not in levels:
            yield Refusal(message.format(effort), param="reasoning_effort", **fields)

    return rule


def toggle_thinking(kinds: Collection[str], message: str, **fields: Any) -> Rule:
    """Refuse other types of `thinking`."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        thinking = exchange.body.get("thinking")
        if thinking is not None and thinking.get("type") not in kinds:
            yield Refusal(message.format(thinking.get("type")), **fields)

    return rule
