"""What a request asks for: its messages, its functions and its options, from the body of either API. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from clew.serve.openai import bodies, ids
from clew.serve.openai.content_parts import Parts, read_content, read_image_url
from clew.serve.openai.frames import BODY, ECHO, KEY, REPEATED, make_echo
from clew.serve.openai.refusals import InvalidValue, MissingParameter, UnsupportedValue, translate_validation_error


@dataclass(frozen=True)
class Call:
    """A call of a function, in a message of the conversation so far.

    Attributes:
        id: Its id, as the caller has it.
        name: The function.
        arguments: The arguments.
        param: Its place in the request.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    param: str = field(default="input", compare=False)


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
        param: Its place in the request.
    """

    role: str
    content: Parts = field(default_factory=list)
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    item: str | None = None
    is_reference: bool = False
    param: str = field(default="input", compare=False)


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
        spoken: All messages in their order, without those of the system.
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
    spoken: tuple[Said, ...]
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
    def repeated(self) -> dict[str, Any]:
        """What the response repeats of it, as fields of its frame, without the model."""
        repeated = ("instructions", "metadata", "functions", "options", "output_schema", "echo")
        return {name: getattr(self, name) for name in repeated}

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
        if self.results and not any(
            ids.decode(str(said.call_id), ids.CALL, ids.FUNCTION_CALL) for said in self.results
        ):
            # Calls of another service, whose history the request has.
            return None
        for said in reversed((*self.history, *self.results)):
            for name in (said.call_id, said.item, *(call.id for call in said.calls)):
                if name and ids.decode(name, *ids.THREAD_KINDS):
                    return name
        return None


def note_key(ask: Ask, key: str | None, body: bodies.Body) -> Ask:
    """Note a caller's key for repetitions, and what was sent with it: however it is to be answered."""
    if key is None:
        return ask
    return replace(ask, echo={**ask.echo, KEY: _make_digest(key.encode()), BODY: digest_body(body)})


def digest_body(body: bodies.Body) -> str:
    """Digest what a request asks for, however it is to be answered."""
    return _make_digest(to_json(body.model_dump(mode="json", exclude={"stream", "stream_options", "background"})))


def _make_digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


# The Responses API.


def read_response(body: bodies.ResponseCreate) -> Ask:
    """Read what a request of the Responses API asks for.

    Raises:
        Problem: The input cannot be used.
    """
    said, decisions = read_items(body.input if body.input is not None else [])
    text = body.text or bodies.TextOptions()
    reasoning = body.reasoning or bodies.ReasoningOptions()
    schema, schema_name = _read_format(text.format)
    options = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "tool_choice": _read_choice(body.tool_choice),
        "reasoning_effort": reasoning.effort,
        "verbosity": text.verbosity,
        "service_tier": _read_tier(body.service_tier),
        "parallel_tool_calls": False if body.parallel_tool_calls is False else None,
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
        read = bodies.items.validate_python(rows)
    except ValidationError as error:
        raise _refuse_items(error, rows) from None
    said: list[Said] = []
    decisions: list[Decision] = []
    decided = _list_decided(read)
    for number, item in enumerate(read):
        param = f"input[{number}]"
        match item:
            case bodies.MessageItem():
                is_text = item.role in ("system", "developer")
                content = read_content(item.content, f"{param}.content", is_text=is_text)
                said.append(Said(item.role, content, item=item.id, param=param))
            case bodies.FunctionCallItem() | bodies.CustomCallItem() | bodies.HostCallItem():
                said.append(Said("assistant", calls=(_read_call(item, param),), item=item.id, param=param))
            case bodies.FunctionOutputItem():
                output = read_content(item.output, f"{param}.output")
                said.append(Said("tool", output, call_id=item.call_id, item=item.id, param=param))
            case bodies.HostOutputItem():
                output = _read_host_output(item.output, f"{param}.output")
                said.append(Said("tool", output, call_id=item.call_id or item.id, item=item.id, param=param))
            case bodies.ApprovalItem() if item.approval_request_id not in decided:
                decisions.append(Decision(item.approval_request_id, item.approve, item.reason))
            case bodies.ServerItem() if ids.decode(item.id, *ids.THREAD_KINDS) is None:
                said += _read_server_item(item, param)
            case bodies.ApprovalItem():
                pass
            case _:
                is_reference = isinstance(item, bodies.ReferenceItem)
                said.append(Said("assistant", item=item.id, is_reference=is_reference, param=param))
    return _join_replies(said), decisions


def _list_decided(read: Sequence[Any]) -> set[str]:
    """List the requests for approval of another service which its history has, and what followed the decision."""
    news = next((n for n in reversed(range(len(read))) if not isinstance(read[n], bodies.ApprovalItem)), 0)
    before = {item.approval_request_id for item in read[:news] if isinstance(item, bodies.ApprovalItem)}
    return {
        item.id
        for item in read
        if isinstance(item, bodies.ServerItem)
        and item.type == "mcp_approval_request"
        and item.id in before
        and ids.decode(item.id, ids.APPROVAL_REQUEST) is None
    }


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
    refusal = translate_validation_error(error, rows)
    path, refusal.param = refusal.param or "", f"input{refusal.param or ''}"
    refusal.message = refusal.message.replace(f"'{path}'", f"'{refusal.param}'", 1)
    refusal.args = (refusal.message,)
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


def _read_call(item: bodies.FunctionCallItem | bodies.CustomCallItem | bodies.HostCallItem, param: str) -> Call:
    match item:
        case bodies.FunctionCallItem():
            return Call(item.call_id, item.name, _read_arguments(item.arguments), param)
        case bodies.CustomCallItem():
            return Call(item.call_id, item.name, {"input": item.input}, param)
    fields = item.model_extra or {}
    done = {name: fields[name] for name in _HOST_FIELDS if fields.get(name) not in bodies.NEUTRAL}
    return Call(item.call_id, item.type.removesuffix("_call"), done, param)


_HOST_FIELDS = ("action", "actions", "operation")
"""The fields in which calls of tools of the caller's machine have what was to be done."""
MALFORMED = "malformed_arguments"
"""The argument that has the text of arguments which are no JSON object, as a model had written them."""


def _read_arguments(text: str | None) -> dict[str, Any]:
    """Read the arguments of an earlier call. A model has written them: what is no JSON object stays a text."""
    try:
        arguments = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        return {MALFORMED: text}
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {MALFORMED: text}


def _read_host_output(output: Any, param: str) -> Parts:
    """Read the result of a tool of the caller's machine: a text, a screenshot, or what else is JSON."""
    match output:
        case None:
            return []
        case str():
            return [output]
        case {"type": "computer_screenshot", "image_url": str(url)} if url:
            return [read_image_url(url, f"{param}.image_url")]
    return [to_json(output).decode()]


def _read_server_item(item: bodies.ServerItem, param: str) -> list[Said]:
    """Read what another service's server has done: a call and its result; nothing where it says neither."""
    call: dict[str, Any] = {}
    result: Parts | None = None
    name = item.name or item.type.removesuffix("_call")
    match item.type:
        case "mcp_call":
            call = _read_arguments(item.arguments)
            failed = item.error if isinstance(item.error, str) else to_json(item.error).decode()
            result = [item.output or ""] if item.error is None else [f"error: {failed}"]
        case "code_interpreter_call" if item.code:
            call, result = {"code": item.code}, [to_json(item.outputs or []).decode()]
        case "file_search_call" if item.results:
            call, result = {"queries": item.queries or []}, [to_json(item.results).decode()]
        case "image_generation_call" if item.result:
            call = {"prompt": item.revised_prompt} if item.revised_prompt else {}
            result = [read_image_url(f"data:image/png;base64,{item.result}", f"{param}.result")]
    if result is None:
        return []
    made = Said("assistant", calls=(Call(item.id, name, call, param),), param=param)
    return [made, Said("tool", result, call_id=item.id, param=param)]


def _read_choice(choice: str | bodies.NamedFunction | None) -> str | None:
    return choice.name if isinstance(choice, bodies.NamedFunction) else choice


def _read_tier(tier: str | None) -> str | None:
    """Read the tier of a provider's service; `auto` and `default` are what a provider has without one."""
    return None if tier in (None, "auto", "default") else tier


def _read_format(form: Any) -> tuple[dict[str, Any] | None, str | None]:
    match form:
        case bodies.JsonObjectFormat():
            return {"type": "object"}, None
        case bodies.JsonSchemaFormat():
            return form.schema_, form.name
        case bodies.ChatSchemaFormat():
            # Without a schema any JSON object will do.
            return form.json_schema.schema_ or {"type": "object"}, form.json_schema.name
    return None, None


def _make_function(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    # An empty schema, and one without a type, describe an object, too.
    schema = {"type": "object", **(parameters or {"properties": {}})}
    return {"name": name, "description": description or "", "parameters": schema}


# Chat Completions.


def read_chat(body: bodies.ChatCreate) -> Ask:
    """Read what a request of Chat Completions asks for.

    Raises:
        Problem: A message cannot be used.
    """
    said = read_messages(body.messages)
    schema, schema_name = _read_format(body.response_format)
    choice = body.tool_choice
    options = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_completion_tokens or body.max_tokens,
        "tool_choice": choice.function.name if isinstance(choice, bodies.ChosenFunction) else choice,
        "reasoning_effort": body.reasoning_effort,
        "verbosity": body.verbosity,
        "service_tier": _read_tier(body.service_tier),
        "stop": list(filter(None, [body.stop] if isinstance(body.stop, str) else body.stop or ())) or None,
        "parallel_tool_calls": False if body.parallel_tool_calls is False else None,
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


def read_messages(messages: Sequence[bodies.ChatMessage]) -> list[Said]:
    """Read the messages of a chat.

    Raises:
        Problem: A message cannot be used.
    """
    said: list[Said] = []
    for number, message in enumerate(messages):
        said.append(_read_message(message, said, f"messages[{number}]"))
    return said


def _read_message(message: bodies.ChatMessage, before: Sequence[Said], param: str) -> Said:
    listed = enumerate(message.tool_calls or ())
    calls = tuple(_read_chat_call(call, f"{param}.tool_calls[{number}]") for number, call in listed)
    if called := message.function_call:
        # Before calls had ids, the next message of a function was the result.
        name = f"{param}.function_call"
        calls = (*calls, Call(name, called.name, _read_arguments(called.arguments), name))
    call_id, role = message.tool_call_id, message.role
    if role == "function":
        role = "tool"
        call_id = before[-1].calls[-1].id if before and before[-1].calls else None
    if role == "tool" and call_id is None:
        raise MissingParameter(f"Missing required parameter: '{param}.tool_call_id'.", param=f"{param}.tool_call_id")
    content: Parts = read_content(message.content, f"{param}.content", is_text=role in ("system", "developer"))
    if message.refusal and not _join_text(content):
        content = [message.refusal]
    if message.audio and not (content or calls):
        if not message.audio.transcript:
            raise UnsupportedValue(
                f"'{param}.audio' names a recording of another service: send its transcript as the content",
                param=f"{param}.audio",
            )
        content = [message.audio.transcript]
    return Said(role, content, calls, call_id, param=param)


def _read_chat_call(call: bodies.ChatCall, param: str) -> Call:
    if call.custom is not None and call.type == "custom":
        return Call(call.id, call.custom.name, {"input": call.custom.input}, param)
    assert call.function is not None, "a call of the type function has one"
    return Call(call.id, call.function.name, _read_arguments(call.function.arguments), param)


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
    system = [one for one in said if one.role in ("system", "developer")]
    spoken = [one for one in said if one.role not in ("system", "developer")]
    if system and not spoken and not decisions:
        # Nobody else has spoken: a model answers the last of them.
        spoken = [replace(system.pop(), role="user")]
    prompts = [instructions, *(_join_text(one.content) for one in system)]
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
        spoken=tuple(spoken),
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
    count = 0
    # Ids may be repeated, also within a message: results answer the calls of one id in their order.
    missing: list[tuple[str, Call]] = []
    for number, said in enumerate(history):
        if said.role != "tool" and missing:
            break
        message: dict[str, Any] = {"role": said.role, "content": simplify(said.content)}
        if said.calls:
            missing = [(f"{calls}{count + n}", call) for n, call in enumerate(said.calls)]
            count += len(missing)
            message["tool_calls"] = [
                {"id": name, "name": call.name, "arguments": call.arguments} for name, call in missing
            ]
        if said.role == "tool":
            answered = next((pair for pair in missing if pair[1].id == said.call_id), None)
            if answered is None:
                raise InvalidValue(
                    f"the result for the call '{str(said.call_id)[:100]}' does not follow a message with that call",
                    param=said.param,
                )
            missing.remove(answered)
            message |= {"tool_call_id": answered[0], "name": answered[1].name}
        elif not said.content and not said.calls:
            # A reasoning, or what a session had done itself: there is no text of it.
            continue
        if number < len(refs) and refs[number]:
            message["refs"] = dict(refs[number])
        messages.append(message)
    if missing:
        call = missing[0][1]
        raise InvalidValue(f"No tool output found for function call {call.id[:100]}.", param=call.param)
    return messages


@dataclass(frozen=True)
class Opening:
    """What a new session begins with.

    Attributes:
        history: The messages before the newest ones of the user.
        content: The newest message of the user.
        replies: What was answered to it elsewhere.
    """

    history: tuple[Said, ...]
    content: Parts
    replies: tuple[Said, ...]


def split_opening(ask: Ask) -> Opening:
    """Split the messages of a request for a new session.

    Raises:
        MissingParameter: There is no message of the user.
    """
    spoken = ask.spoken
    last = next((number for number in reversed(range(len(spoken))) if spoken[number].role == "user"), None)
    if last is None:
        param = spoken[0].param.partition("[")[0] if spoken else "input"
        raise MissingParameter("there is no message of the user to answer", param=param)
    first = last
    while first and spoken[first - 1].role == "user":
        first -= 1
    content = [part for said in spoken[first : last + 1] for part in said.content]
    return Opening(spoken[:first], content, spoken[last + 1 :])


def simplify(content: Parts) -> str | Parts:
    """Make a text of a content that has only texts."""
    texts = [part for part in content if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _join_text(content: Parts) -> str:
    return "\n".join(part for part in content if isinstance(part, str))
