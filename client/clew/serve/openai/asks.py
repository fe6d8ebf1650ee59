"""What a request asks for: its messages, its functions and its options, from the body of either API. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from clew.serve.openai import inputs, names
from clew.serve.openai.frames import ECHO, REPEATED, make_echo
from clew.serve.openai.parts import Parts, read_content
from clew.serve.openai.refusals import InvalidValue, UnsupportedValue, translate_validation_error


@dataclass(frozen=True)
class Call:
    """A call of a function, in a message of the conversation so far.

    Attributes:
        id: Its id, as the caller has it.
        name: The function.
        arguments: The arguments.
    """

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """A message that a request has sent, or a part of the conversation that it only names.

    Attributes:
        role: The speaker.
        content: The texts and the other parts.
        calls: The calls of an assistant's message.
        call_id: The call that a tool's message answers.
        item: The id of its item, which names a session if this service has made it; None: it has none.
        is_reference: The request has the id alone.
    """

    role: str
    content: Parts = field(default_factory=list)
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    item: str | None = None
    is_reference: bool = False


@dataclass(frozen=True)
class Decision:
    """A person's decision about a call.

    Attributes:
        request: The id of the request for approval.
        approve: Whether the call may run.
        reason: The reason.
    """

    request: str
    approve: bool
    reason: str | None


@dataclass(frozen=True)
class Ask:
    """What a request asks for.

    Attributes:
        model: The agent or the model; None: that of the conversation.
        instructions: The instructions.
        history: The messages before the newest reply, and that reply.
        content: The new message of the user.
        results: The results of functions, behind the newest reply.
        decisions: Decisions about calls.
        functions: The caller's functions (`ExternalToolSpec`).
        options: The options of model calls (`ModelOptions`).
        output_schema: The JSON Schema that the answer must meet.
        metadata: The caller's metadata.
        echo: What the response repeats beside.
    """

    model: str | None
    instructions: str | None
    history: tuple[Said, ...]
    content: Parts
    results: tuple[Said, ...]
    decisions: tuple[Decision, ...]
    functions: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    output_schema: dict[str, Any] | None
    metadata: dict[str, str]
    echo: dict[str, Any]

    @property
    def provider_model(self) -> str | None:
        """The model, if it is one of a provider; None: it is an agent, or that of the conversation."""
        return self.model if self.model and ":" in self.model else None

    @property
    def agent(self) -> str | None:
        """The agent, if it is one."""
        return self.model if self.model and ":" not in self.model else None

    @property
    def has_news(self) -> bool:
        """Whether there is something that the conversation has not: a message, a result or a decision."""
        return bool(self.content or self.results or self.decisions)

    def make_message_options(self) -> dict[str, Any]:
        """Make the options of `Session.message`, without the id and the model."""
        metadata = dict(self.metadata)
        if self.echo:
            metadata[ECHO] = json.dumps(self.echo, separators=(",", ":"))
        made: dict[str, Any] = {"metadata": metadata} if metadata else {}
        if self.instructions:
            made["context_policy"] = {"system_prompt": self.instructions}
        if self.options:
            made["model_options"] = self.options
        if self.output_schema is not None:
            made["output_schema"] = self.output_schema
        return made

    def find_place(self) -> str | None:
        """Find what names a session: a decision, or the newest item or result; None: there is nothing."""
        if self.decisions:
            return self.decisions[0].request
        for said in reversed((*self.history, *self.results)):
            for name in (said.call_id, said.item, *(call.id for call in said.calls)):
                if name and names.decode(name, *names.THREAD_KINDS):
                    return name
        return None


# The Responses API.


def read_response(body: inputs.ResponseCreate) -> Ask:
    """Read what a request of the Responses API asks for.

    Raises:
        Problem: The input cannot be used.
    """
    said, decisions = read_items(body.input if body.input is not None else [])
    text = body.text or inputs.TextOptions()
    reasoning = body.reasoning or inputs.ReasoningOptions()
    schema, schema_name = _read_format(text.format)
    options = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "tool_choice": _read_choice(body.tool_choice),
        "reasoning_effort": reasoning.effort,
        "verbosity": text.verbosity,
        "service_tier": _read_tier(body.service_tier),
    }
    echo = make_echo(
        background=bool(body.background),
        previous=body.previous_response_id,
        schema_name=schema_name,
        store=body.store is not False,
        summary=reasoning.summary or reasoning.generate_summary,
        service_tier=body.service_tier,
        repeated={name: getattr(body, name) for name in REPEATED},
    )
    functions = tuple(_make_function(tool.name, tool.description, tool.parameters) for tool in body.tools or ())
    return _make_ask(
        said,
        model=body.model,
        instructions=body.instructions,
        decisions=decisions,
        functions=functions,
        options=options,
        schema=schema,
        metadata=body.metadata,
        echo=echo,
    )


def read_items(given: str | Sequence[Any]) -> tuple[list[Said], list[Decision]]:
    """Read the items of an input.

    Raises:
        Problem: An item is not valid, or of a type that is not served.
    """
    if isinstance(given, str):
        return [Said("user", [given])], []
    rows = [_complete_item(row) for row in given]
    try:
        read = inputs.items.validate_python(rows)
    except ValidationError as error:
        raise _refuse_items(error, rows) from None
    said: list[Said] = []
    decisions: list[Decision] = []
    for number, item in enumerate(read):
        match item:
            case inputs.MessageItem():
                said.append(Said(item.role, read_content(item.content, f"input[{number}].content"), item=item.id))
            case inputs.FunctionCallItem():
                said.append(Said("assistant", calls=(_read_call(item, f"input[{number}]"),), item=item.id))
            case inputs.FunctionOutputItem():
                output = read_content(item.output, f"input[{number}].output")
                said.append(Said("tool", output, call_id=item.call_id, item=item.id))
            case inputs.ApprovalItem():
                decisions.append(Decision(item.approval_request_id, item.approve, item.reason))
            case _:
                said.append(Said("assistant", item=item.id, is_reference=isinstance(item, inputs.ReferenceItem)))
    return _join_replies(said), decisions


def _complete_item(row: Any) -> Any:
    """Complete an item: a message may leave out its type, and a reference, too."""
    if not isinstance(row, dict) or row.get("type") is not None:
        return row
    return {**row, "type": "message" if "role" in row else "item_reference"}


def _refuse_items(error: ValidationError, rows: Sequence[Any]) -> InvalidValue:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "union_tag_invalid" and len(first["loc"]) == 1:
        number = int(first["loc"][0])
        kind = str(rows[number].get("type"))[:50]
        return UnsupportedValue(f"items of the type '{kind}' are not served", param=f"input[{number}].type")
    refusal = translate_validation_error(error)
    refusal.param = f"input{refusal.param or ''}"
    return refusal


def _join_replies(said: Sequence[Said]) -> list[Said]:
    """Join the parts of a reply: its text and its calls, which are items of their own, are one message."""
    joined: list[Said] = []
    for one in said:
        before = joined[-1] if joined else None
        if one.role == "assistant" and before and before.role == "assistant" and not (one.content and before.content):
            content, calls = before.content or one.content, (*before.calls, *one.calls)
            is_reference = one.is_reference or before.is_reference
            item = one.item or before.item
            joined[-1] = replace(before, content=content, calls=calls, item=item, is_reference=is_reference)
        else:
            joined.append(one)
    return joined


def _read_call(item: inputs.FunctionCallItem, param: str) -> Call:
    return Call(item.call_id, item.name, _read_arguments(item.arguments, f"{param}.arguments"))


def _read_arguments(text: str, param: str) -> dict[str, Any]:
    try:
        arguments = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidValue(f"'{param}' is no JSON object", param=param)
    return arguments


def _read_choice(choice: str | inputs.NamedFunction | None) -> str | None:
    return choice.name if isinstance(choice, inputs.NamedFunction) else choice


def _read_tier(tier: str | None) -> str | None:
    """Read the tier of a provider's service; `auto` and `default` are what a provider has without one."""
    return None if tier in (None, "auto", "default") else tier


def _read_format(form: Any) -> tuple[dict[str, Any] | None, str | None]:
    match form:
        case inputs.JsonObjectFormat():
            return {"type": "object"}, None
        case inputs.JsonSchemaFormat():
            return form.schema_, form.name
        case inputs.ChatSchemaFormat():
            return form.json_schema.schema_, form.json_schema.name
    return None, None


def _make_function(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"name": name, "description": description or "", "parameters": schema}


# Chat Completions.


def read_chat(body: inputs.ChatCreate) -> Ask:
    """Read what a request of Chat Completions asks for.

    Raises:
        Problem: A message cannot be used.
    """
    said = [_read_message(message, f"messages[{number}]") for number, message in enumerate(body.messages)]
    schema, schema_name = _read_format(body.response_format)
    choice = body.tool_choice
    options = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_completion_tokens or body.max_tokens,
        "tool_choice": choice.function.name if isinstance(choice, inputs.ChosenFunction) else choice,
        "reasoning_effort": body.reasoning_effort,
        "verbosity": body.verbosity,
        "service_tier": _read_tier(body.service_tier),
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "seed": body.seed,
    }
    echo = make_echo(
        background=False,
        previous=None,
        schema_name=schema_name,
        store=True,
        summary=None,
        service_tier=body.service_tier,
        repeated={name: getattr(body, name) for name in REPEATED},
    )
    functions = tuple(
        _make_function(tool.function.name, tool.function.description, tool.function.parameters)
        for tool in body.tools or ()
    )
    return _make_ask(
        said,
        model=body.model,
        instructions=None,
        decisions=[],
        functions=functions,
        options=options,
        schema=schema,
        metadata=body.metadata,
        echo=echo,
    )


def _read_message(message: inputs.ChatMessage, param: str) -> Said:
    calls = tuple(
        Call(call.id, call.function.name, _read_arguments(call.function.arguments, f"{param}.tool_calls"))
        for call in message.tool_calls or ()
    )
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidValue(f"'{param}.tool_call_id' is missing", param=f"{param}.tool_call_id")
    content = read_content(message.content or [], f"{param}.content")
    return Said(message.role, content, calls, message.tool_call_id)


# What both have.


def _make_ask(
    said: Sequence[Said],
    *,
    model: str | None,
    instructions: str | None,
    decisions: Sequence[Decision],
    functions: tuple[dict[str, Any], ...],
    options: Mapping[str, Any],
    schema: dict[str, Any] | None,
    metadata: Mapping[str, str] | None,
    echo: dict[str, Any],
) -> Ask:
    reserved = next((name for name in metadata or () if name.startswith("clew.")), None)
    if reserved:
        raise InvalidValue("names of metadata that begin with 'clew.' are Clew's own", param="metadata")
    prompts = [instructions, *(_join_text(one.content) for one in said if one.role in ("system", "developer"))]
    spoken = [one for one in said if one.role not in ("system", "developer")]
    news = len(spoken)
    while news and spoken[news - 1].role != "assistant":
        news -= 1
    content: Parts = []
    for one in spoken[news:]:
        if one.role == "user":
            content += one.content
    return Ask(
        model=model,
        instructions="\n\n".join(filter(None, prompts)) or None,
        history=tuple(spoken[:news]),
        content=content,
        results=tuple(one for one in spoken[news:] if one.role == "tool"),
        decisions=tuple(decisions),
        functions=functions,
        options={name: value for name, value in options.items() if value is not None},
        output_schema=schema,
        metadata=dict(metadata or {}),
        echo=echo,
    )


def make_snapshot(
    history: Sequence[Said], refs: Sequence[Mapping[str, str]] = (), *, calls: str = "c"
) -> list[dict[str, Any]]:
    """Make the messages of a snapshot. Calls get short ids, and each has its result right behind it.

    `calls`: what these ids begin with.

    Raises:
        InvalidValue: A result has no call before it, or a call has no result.
    """
    messages: list[dict[str, Any]] = []
    short: dict[str, str] = {}
    missing: dict[str, str] = {}
    for number, said in enumerate(history):
        if said.role != "tool" and missing:
            break
        message: dict[str, Any] = {"role": said.role, "content": simplify(said.content)}
        if said.calls:
            for call in said.calls:
                short[call.id] = f"{calls}{len(short)}"
                missing[call.id] = call.name
            message["tool_calls"] = [
                {"id": short[call.id], "name": call.name, "arguments": call.arguments} for call in said.calls
            ]
        if said.role == "tool":
            if said.call_id not in missing:
                raise InvalidValue(
                    f"the result for the call '{str(said.call_id)[:100]}' does not follow a message with that call",
                    param="input",
                )
            message |= {"tool_call_id": short[str(said.call_id)], "name": missing.pop(str(said.call_id))}
        elif not said.content and not said.calls:
            # A reasoning, or what a session had done itself: there is no text of it.
            continue
        if number < len(refs) and refs[number]:
            message["refs"] = dict(refs[number])
        messages.append(message)
    if missing:
        raise InvalidValue(f"No tool output found for function call {next(iter(missing))[:100]}.", param="input")
    return messages


def simplify(content: Parts) -> str | Parts:
    """Make a text of a content that has only texts."""
    texts = [part for part in content if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _join_text(content: Parts) -> str:
    return "\n".join(part for part in content if isinstance(part, str))
