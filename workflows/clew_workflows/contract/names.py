"""Names on the wire: workflow types, task queues, ids, tools."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from hashlib import sha256
from itertools import count
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError, to_json

from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import (
    MAX_METADATA_BYTES,
    MAX_METADATA_NAMES,
    MAX_PREFIX_CHARACTERS,
    MAX_SERVER_CHARACTERS,
    MAX_TOOL_CHARACTERS,
)

# Names on the wire: workflow types, the default task queue, and the forms of ids.


WORKFLOW_TYPE = "AgentSession"
RESTORE_WORKFLOW = "RestoreSession"
READ_WORKFLOW = "ReadThread"
READ_CONTEXT_WORKFLOW = "ReadContext"
FORK_WORKFLOW = "ForkSession"
DELETE_WORKFLOW = "DeleteSession"
DELETED_WORKFLOW = "DeletedSession"
"""The workflow that has the id of a deleted session until the server forgets it, or the id has a new session."""
LIST_WORKFLOW = "ListSessions"
AGENTS_WORKFLOW = "ListAgents"
PUT_BLOB_WORKFLOW = "PutBlob"
GET_BLOB_WORKFLOW = "GetBlob"
START_UPLOAD_WORKFLOW = "StartUpload"
FINISH_UPLOAD_WORKFLOW = "FinishUpload"
SEND_WORKFLOW = "SendMessage"
DELIVER_WORKFLOW = "DeliverWebhook"
DELIVERY_PREFIX = "clew-service-webhook-"
"""The beginning of the ids of deliveries. The session's id, a slash and the notice's id follow."""
TASK_QUEUE = "clew"
READ_RESULT = "read_result"
"""The tool that every session with tools has: the model reads large tool results with it."""
VIEW_BLOB = "view_blob"
"""The tool of sessions with images, recordings or files: the model sees one of them again with it."""
BUILT_IN_TOOLS = (READ_RESULT, VIEW_BLOB)
"""The tools that Clew adds to those of a configuration."""

SESSION_ID = Form(
    r"^[A-Za-z0-9._:-]{1,200}$", "a session id has 1 to 200 characters of letters, digits, '.', '_', ':' and '-'"
)
SessionId = Annotated[str, SESSION_ID]
Id = Annotated[str, Form(r"^[^\x00-\x1f\x7f]{1,200}$", "an id has 1 to 200 characters, and no control characters")]
PROVIDER_NAME = r"[a-z0-9_-]{1,64}"
"""The pattern of a provider's name."""
MODEL_NAME = Form(
    rf"^{PROVIDER_NAME}:[^\s\x00-\x1f/][^\s\x00-\x1f]{{0,199}}$",
    "a model is written as provider:model, for example openai:gpt-4o",
)
ModelName = Annotated[str, MODEL_NAME]
"""`provider:model`. A session can name a provider, but no address of one."""
AGENT_NAME = Form(r"^[A-Za-z0-9_.-]{1,64}$", "an agent's name has 1 to 64 letters, digits, '_', '.' and '-'")
AgentName = Annotated[str, AGENT_NAME]
ENCODING_NAME = Form(
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    "the name of an encoding has 1 to 64 letters, digits, '_', '.' and '-', and begins with a letter or a digit",
)
EncodingName = Annotated[str, ENCODING_NAME]
"""The name of a way to count tokens: a published vocabulary, an estimate, or a tokenizer that is registered."""
Seq = Annotated[int, Field(ge=0)]


def _check_size(metadata: dict[str, str]) -> dict[str, str]:
    size = len(to_json(metadata))
    if size > MAX_METADATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "it has {size} bytes of JSON, at most {limit} are accepted",
            {"size": size, "limit": MAX_METADATA_BYTES},
        )
    return metadata


Metadata = Annotated[
    dict[Id, Annotated[str, StringConstraints(max_length=2000)]],
    Field(max_length=MAX_METADATA_NAMES),
    AfterValidator(_check_size),
]
"""Names and values of a caller's own; at most `MAX_METADATA_BYTES` of JSON together."""
OwnRefs = Annotated[dict[Id, Annotated[str, StringConstraints(max_length=200)]], Field(max_length=16)]
"""Refs of a caller's own, by name: ids of what a message belongs to in other systems."""


# Task queues: a deployment's own, which clients know, and one each for model calls and for tool calls.
#
# Where workers serve sessions and model calls, a model call is first on the deployment's own queue: Temporal hands it
# to the worker that schedules it, with the end of the workflow task (eager execution), and dispatches nothing. A
# worker that has no room for it declines it, and it goes to the queue of model calls.
#
# A provider whose calls are limited has a queue of its own: Temporal limits the rate of a queue.
#
# A worker's slots belong to a queue, not to an activity type. With queues of their own, hanging model calls take no
# slot from tools, and neither take one from the short activities that every session needs (`prepare`, `archive`,
# `thaw`, …), which stay on the deployment's own queue. Its workers have slots beside those for declinable calls.


def name_model_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's model calls. One may wait minutes for the network."""
    return f"{task_queue}-models"


def name_provider_queue(task_queue: str, provider: str) -> str:
    """Name the task queue that a provider's calls have if their rate is limited."""
    return f"{name_model_queue(task_queue)}-{provider}"


def choose_model_queue(task_queue: str, model: str, limited: Collection[str], *, direct: bool = False) -> str:
    """Choose the task queue of a call of a model.

    Args:
        task_queue: The deployment's own.
        model: `provider:model`.
        limited: The providers with a queue of their own.
        direct: A worker of the deployment's own queue may make the call.
    """
    provider = model.partition(":")[0]
    if provider in limited:
        return name_provider_queue(task_queue, provider)
    return task_queue if direct else name_model_queue(task_queue)


def name_tool_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's tool calls. A tool may take any time and any resource."""
    return f"{task_queue}-tools"


def name_caller_queue(task_queue: str) -> str:
    """Name the task queue of `clew_workflows.contract.calls`. One may wait minutes, and takes no slot of sessions."""
    return f"{task_queue}-callers"


def name_fork(session_id: str, unique: str) -> str:
    """Name a fork for which the caller has no id. Long ids of sessions are cut."""
    return f"{session_id[:160]}-{unique}"


# Names for systems that do not take the original ones: tools, properties and documents of a request, agents as tools.


HASH_CHARACTERS = 8
"""Hexadecimal digits of a hash at the end of a name."""
_HASHED = re.compile(rf".*[^0-9A-Za-z][0-9a-f]{{{HASH_CHARACTERS}}}", re.DOTALL)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def rewrite_name(
    name: str, valid: re.Pattern[str], limit: int, taken: Collection[str] = (), *, mark: str = "_"
) -> str:
    """Make a valid name of any other one, so that no two names become one.

    A valid name stays. Another one ends in a hash of the original, and so it is the same whatever other names there
    are; a valid name that ends like that counts as another one. Names are made one after another: a name that is
    `taken` already is not made a second time, and what was made before does not change.

    Args:
        name: The original.
        valid: The names that are accepted. It must accept letters, digits and the mark, or these after a `_`.
        limit: The longest name, in characters.
        taken: The names that others have.
        mark: What stands before the hash, and for each character that names do not have.
    """
    if valid.fullmatch(name) and len(name) <= limit and not _HASHED.fullmatch(name) and name not in taken:
        return name
    safe = _NOT_IN_NAMES.sub(mark, name)
    for number in count():
        salted = f"{number} {name}" if number else name
        end = f"{mark}{sha256(salted.encode('utf-8', 'replace')).hexdigest()[:HASH_CHARACTERS]}"
        candidate = f"{safe[: limit - len(end)]}{end}"
        if not valid.fullmatch(candidate):
            candidate = f"_{safe[: limit - len(end) - 1]}{end}"
        if candidate not in taken:
            return candidate
    raise AssertionError("there are more numbers than names")


# Names of the tools of MCP servers: `mcp:<server>/<tool>` in configurations, `mcp__<server>__<tool>` for models.
#
# Providers accept letters, digits, `_` and `-` in the name of a tool, and at most 64 of them.


MCP_PREFIX = "mcp__"
"""The beginning of the names of all tools of MCP servers."""
ALL_TOOLS = "*"
"""The name that stands for all tools of a server."""
_TOOL = re.compile(r"[A-Za-z0-9_-]+")
# Without `__` inside and `_` at its ends, the name of a server ends where the tool's begins.
_SERVER = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_CONFIGURED = re.compile(r"mcp:([^/]+)/(.+)", re.DOTALL)


def is_server_name(name: str) -> bool:
    """Whether a server can have this name: 1 to 32 letters, digits, `-`, and single `_` between them."""
    return len(name) <= MAX_SERVER_CHARACTERS and _SERVER.fullmatch(name) is not None


def split_configured_name(name: str) -> tuple[str, str] | None:
    """Split a configuration's `mcp:<server>/<tool>` into server and tool; None: it is another tool's name."""
    match = _CONFIGURED.fullmatch(name)
    return (match[1], match[2]) if match else None


def make_tool_name(server: str, tool: str) -> str:
    """Make the name that models read. A name that had to be changed ends in a hash, so that it stays unique."""
    room = MAX_TOOL_CHARACTERS - len(_make_prefix(server))
    return _make_prefix(server) + rewrite_name(tool, _TOOL, room, mark="-")


def find_server(tool_name: str) -> str | None:
    """Find the server in the name that models read; None: it is another tool's name."""
    kind, _, rest = tool_name.partition("__")
    server, separator, _ = rest.partition("__")
    return server if kind == "mcp" and separator and is_server_name(server) else None


def selects(configured: str, tool_name: str) -> bool:
    """Whether a name in a configuration means the tool that models read under `tool_name`."""
    split = split_configured_name(configured)
    if split is None:
        return configured == tool_name
    server, tool = split
    return find_server(tool_name) == server if tool == ALL_TOOLS else make_tool_name(server, tool) == tool_name


def is_selected(configured: str, tools: Iterable[str]) -> bool:
    """Whether a name in a configuration means one of its `tools`, or all tools of a server that it has tools of."""
    split = split_configured_name(configured)
    if split is None:
        return configured in tools
    server, tool = split
    others = [other for name in tools if (other := split_configured_name(name)) and other[0] == server]
    return bool(others) if tool == ALL_TOOLS else any(other in (tool, ALL_TOOLS) for _, other in others)


def _make_prefix(server: str) -> str:
    return f"{MCP_PREFIX}{server}__"


def make_child_id(session_id: str, tool_call_id: str) -> str:
    """Make the id of the session of a subagent, which a tool call starts."""
    is_short = len(session_id) <= MAX_PREFIX_CHARACTERS
    return f"{session_id if is_short else sha256(session_id.encode()).hexdigest()}.{tool_call_id}"
