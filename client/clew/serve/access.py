"""Keys and their tenants: what a request may do, and which sessions it may reach.

A tenant's session `ID` is the Temporal workflow `TENANT:ID`. Neither a tenant nor an id has a colon, so no request
can name a session of another tenant.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Unpack

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clew.serve.error_words import ALL_TENANTS, Reader, make_reader
from clew.serve.problems import Forbidden, QuotaExceeded, RateLimited, Unauthorized
from clew.session import Clew, Session
from clew.session.connection import validate_session_id
from clew.session.keywords import SessionOptions
from clew.session.transport import translate_error
from clew_workflows.contract.config import SessionConfig
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.inputs import Snapshot, SnapshotMessage
from clew_workflows.contract.invalid import Form, describe_problems
from clew_workflows.contract.names import WORKFLOW_TYPE, AgentName, ModelName

log = logging.getLogger("clew.serve")

CALLER_ID = Form(r"^[A-Za-z0-9_.-]{1,128}$", "a session id has 1 to 128 letters, digits, '_', '.' and '-'")
"""The pattern of the session ids that callers choose."""
MAX_CHOSEN_CHARACTERS = 160
"""Longest workflow id of a new session: the ids of its subagents begin with it, and a longer one would be hashed."""
TENANT = "tenant"
"""The name of the tenant in a session's metadata."""
TOKEN_PREFIX = "clew_"
"""What each key begins with, so that scanners for leaked secrets find it."""
TOKEN_BYTES = 32
RELOAD_SECONDS = 5.0
"""Seconds after which the file of keys is looked at again."""
DEFAULT_PRIORITY: int = SessionConfig.model_fields["priority"].default
COUNTED_SECONDS = 10.0
"""Seconds after which the server counts a session that was opened."""
QUOTA_SECONDS = 30.0
"""Seconds after which a caller at its quota may try again."""
SESSION_FIELDS = frozenset(
    {
        "agent",
        "external_tools",
        "metadata",
        "on_busy",
        "steering",
        "pin",
        "idle_timeout_seconds",
        "context_policy",
        "priority",
    }
)
"""The fields of a configuration that any key may set beside an agent. The agent fixes the others, and the prompt
of a policy."""
TOOL_FIELDS = frozenset({"tools", "provider_tools", "require_approval", "approval_scope"})
"""The fields of a configuration that choose tools."""
UNRESOLVED = ("unknown_agent", "unknown_model")
"""The failures of requests whose agent or model no worker has."""
MESSAGE_FIELDS = frozenset(
    {
        *("content", "external_tools", "metadata", "model", "fallbacks", "model_options", "context_policy"),
        *("on_busy", "output_schema", "refs", "replies", "request_id", "tools"),
    }
)
"""The options of a message that any key may set beside an agent: `tools` leaves some of the agent's out."""
MODEL_FIELDS = frozenset(
    {
        *("max_output_tokens", "parallel_tool_calls", "seed", "stop", "temperature", "tool_choice", "top_p"),
        "verbosity",
    }
)
"""The options of a model that a message of any key may set beside an agent. The others cost more, or reach the
provider unseen. `max_output_tokens` makes replies shorter than the agent's, not longer."""
POLICY_FIELDS = frozenset(
    {
        *("clear_media", "clear_tool_results", "include_kinds", "keep_last_turns", "low_water", "max_messages"),
        *("summarization_model", "unsupported_content", "window"),
    }
)
"""The fields of a context policy that any key may set beside an agent: what a context leaves out."""

TenantName = Annotated[
    str, Form(r"^[A-Za-z0-9_.-]{1,64}$", "a tenant's name has 1 to 64 letters, digits, '_', '.' and '-'")
]
# Those of subagents are longer.
_KNOWN = re.compile(r"[A-Za-z0-9_.-]{1,198}")


class Key(BaseModel):
    """A row of the file of keys.

    Attributes:
        name: The name of the key, for logs and metrics.
        hash: `sha256:` and the SHA-256 of the key in hexadecimal digits.
        tenant: The tenant. All keys of a tenant reach all of its sessions, and none of others. `*`: the key reaches
            all sessions of the namespace, by the ids that Temporal knows.
        agents: The agents of the sessions that it may open; absent: all. With it, callers set no fields of a
            configuration that an agent fixes, such as tools, prompt, limits and model.
        models: The models that it may name, as `provider:model` or `provider:*`; absent: all, or with `agents` none.
        operator: Whether it may set all fields of a configuration, although it has `agents` or `models`.
        requests_per_minute: The most requests a minute, in each process.
        max_open_sessions: The most sessions of the tenant that are open at a time; absent: no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: TenantName
    hash: Annotated[str, Form(r"^sha256:[0-9a-f]{64}$", "a hash is sha256: and 64 hexadecimal digits")] = Field(
        repr=False
    )
    tenant: TenantName | Literal["*"]
    agents: tuple[AgentName, ...] | None = None
    models: tuple[ModelName, ...] | None = None
    operator: bool = False
    requests_per_minute: int = Field(default=600, ge=1)
    max_open_sessions: int | None = Field(default=None, ge=1)


def make_token() -> str:
    """Make a new key, which only its caller keeps."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def compute_hash(token: str) -> str:
    """Compute what the file of keys has of a key. It has 256 random bits: a plain hash of it cannot be reversed."""
    return f"sha256:{hashlib.sha256(token.encode(errors='surrogatepass')).hexdigest()}"


class Keys:
    """The keys that the service accepts. Of each it has the hash."""

    def __init__(self, keys: Sequence[Key], path: Path | None = None) -> None:
        self._keys = tuple(keys)
        self._path = path
        self._stamp = _read_stamp(path)
        self._looked_at = time.monotonic()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load the keys of a TOML file: a table `[[key]]` for each. Changes of the file are read within seconds.

        Raises:
            InvalidInput: The file cannot be read, or a row is not valid.
        """
        path = Path(path)
        return cls(read_keys(path), path)

    def find(self, token: str) -> Key | None:
        """Find the key of a token; None: there is none. The time that it takes does not depend on the token."""
        self._reload()
        digest, found = compute_hash(token), None
        for key in self._keys:
            if hmac.compare_digest(key.hash, digest):
                found = key
        return found

    def has(self, key: Key) -> bool:
        """Whether the key has the same row as when it was found."""
        self._reload()
        return key in self._keys

    def has_hash(self, hash: str) -> bool:  # noqa: A002
        """Whether there is a key of a hash."""
        self._reload()
        return any(key.hash == hash for key in self._keys)

    def _reload(self) -> None:
        """Read the file again if it has changed. A file that is not valid changes nothing."""
        if self._path is None or time.monotonic() - self._looked_at < RELOAD_SECONDS:
            return
        self._looked_at = time.monotonic()
        if (stamp := _read_stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_keys(self._path)
        except InvalidInput as error:
            log.error("the keys stay as they were: %s", error)
            return
        log.info("read %d keys", len(self._keys))


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read a file of keys.

    Raises:
        InvalidInput: The file cannot be read, or a row is not valid. The message does not repeat a value.
    """
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the file of keys {path} cannot be read: {error}") from None
    if set(rows) - {"key"} or not isinstance(rows.get("key", []), list):
        raise InvalidInput(f"the file of keys {path} has something else than tables [[key]]")
    keys: list[Key] = []
    for number, row in enumerate(rows.get("key", []), 1):
        try:
            # In JSON, as everywhere at the boundary: lists become tuples.
            keys.append(Key.model_validate_json(json.dumps(row, default=str)))
        except ValidationError as error:
            problem = describe_problems(error, Key)
            raise InvalidInput(f"the file of keys {path}: key {number}: {problem}") from None
    for field in ("name", "hash"):
        values = [getattr(key, field) for key in keys]
        if len(set(values)) < len(values):
            raise InvalidInput(f"the file of keys {path}: two keys have the same {field}")
    return tuple(keys)


def _read_stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Read what tells two states of a file apart, also behind a link, as of a secret; None: there is no file."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None


class RateLimiter:
    """Counts the requests of each key in this process: a bucket for each, which fills again all the time.

    Args:
        clock: The time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: Key) -> None:
        """Take one request.

        Raises:
            RateLimited: The key has none left.
        """
        now, per_second = self._clock(), key.requests_per_minute / 60
        left, at = self._buckets.get(key.hash, (float(key.requests_per_minute), now))
        left = min(left + (now - at) * per_second, float(key.requests_per_minute))
        if left < 1:
            self._buckets[key.hash] = (left, now)
            raise RateLimited(
                f"the key {key.name!r} may send {key.requests_per_minute} requests a minute",
                retry_seconds=(1 - left) / per_second,
            )
        self._buckets[key.hash] = (left - 1, now)


class NewSessions:
    """The sessions that tenants have just opened at this process, which the server does not count yet.

    Args:
        clock: The time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opened: dict[str, dict[str, float]] = defaultdict(dict)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lock(self, tenant: str) -> asyncio.Lock:
        """Return what one request of the tenant holds while it looks whether there is room."""
        return self._locks[tenant]

    def note(self, tenant: str, scoped: str) -> None:
        """Note that a session is about to be opened."""
        self._opened[tenant][scoped] = self._clock()

    def list(self, tenant: str) -> list[str]:
        """List those that the server may not count yet."""
        least = self._clock() - COUNTED_SECONDS
        opened = {scoped: at for scoped, at in self._opened.pop(tenant, {}).items() if at > least}
        if opened:
            self._opened[tenant] = opened
        return [*opened]


@dataclass(frozen=True)
class Caller:
    """What a request may do. Its methods take and return the ids that callers know.

    Attributes:
        key: The key of the request.
        clew: The connection to Temporal.
        new_sessions: The sessions that tenants have just opened.
    """

    key: Key
    clew: Clew
    new_sessions: NewSessions

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.key.tenant

    @property
    def prefix(self) -> str:
        """What the workflow ids of the tenant's sessions begin with."""
        return "" if self.tenant == ALL_TENANTS else f"{self.tenant}:"

    @property
    def reader(self) -> Reader:
        """What the request reads of errors and of threads."""
        return make_reader(self.tenant, is_operator=self.key.operator)

    def scope(self, session_id: str) -> str:
        """Make the workflow id of a session of this tenant, which may be a subagent.

        Raises:
            InvalidInput: The text cannot be the id of a session.
        """
        if self.tenant == ALL_TENANTS:
            return validate_session_id(session_id)
        if not _KNOWN.fullmatch(session_id):
            raise InvalidInput("session_id: it has 1 to 128 characters of letters, digits, '.', '_' and '-'")
        return self.prefix + session_id

    def scope_new(self, session_id: str) -> str:
        """Make the workflow id of a session that this request may start.

        Raises:
            InvalidInput: The text is not an id that a caller may choose.
        """
        scoped = self.scope(session_id)
        if self.tenant == ALL_TENANTS:
            return scoped
        if not CALLER_ID.matches(session_id) or len(scoped) > MAX_CHOSEN_CHARACTERS:
            room = min(MAX_CHOSEN_CHARACTERS - len(self.prefix), 128)
            raise InvalidInput(f"session_id: it has at most {room} characters of letters, digits, '.', '_' and '-'")
        return scoped

    def unscope(self, scoped: str) -> str:
        """Make the id that callers know of a session's workflow id."""
        return scoped.removeprefix(self.prefix)

    def session(self, session_id: str) -> Session:
        """Make a handle of a session of this tenant, without checking that the session exists.

        Raises:
            InvalidInput: The text cannot be the id of a session.
        """
        return self.clew.session(self.scope(session_id))

    async def open(self, session_id: str, *, compares: bool = False, **config: Unpack[SessionOptions]) -> Session:
        """Open a session of this tenant as `Clew.open` does. Its metadata has the tenant.

        Args:
            session_id: The session, as callers know it.
            compares: The caller reads `Session.ignored`: a session that exists is queried for it.
            config: The configuration.

        Raises:
            Forbidden: The key does not permit the agent, the model or another field.
            InvalidInput: The id or the configuration is not valid.
            NotFound: There is no such session, and neither an agent nor a model to start it with.
            QuotaExceeded: The tenant has as many open sessions as the key permits.
        """
        has_model = config.get("agent") is not None or config.get("model") is not None
        scoped = self.scope_new(session_id) if has_model else self.scope(session_id)
        self.check_config(config)
        await self.check_room(scoped)
        if has_model:
            config["metadata"] = self.add_tenant(config.get("metadata"))
        return await self.clew._open(scoped, config, compares=compares)

    async def forget_unresolved(self, session: Session, failure: str | None) -> None:
        """Delete a session that has nothing but a request which has failed, since no worker has its agent or model.

        The client, which named both, would find a session that can serve nothing under its id.

        Args:
            session: The session.
            failure: The type of the request's error; None: it has not failed.
        """
        if failure not in UNRESOLVED:
            return
        for kind in ("ai_context_operation", "fork", "summary"):
            if await session.entries(kind=kind, limit=1):
                return
        if len(await session.entries(kind="run", limit=2)) == 1:
            await self.clew.delete(session.id)

    def add_tenant(self, metadata: Mapping[str, str] | None) -> dict[str, str]:
        """Add the tenant to metadata of a session. It is the fairness key, whatever the caller has written."""
        if self.tenant == ALL_TENANTS:
            return dict(metadata or {})
        return {**(metadata or {}), TENANT: self.tenant}

    def check_config(self, config: Mapping[str, Any], *, changes: bool = False) -> None:
        """Check that the key permits the fields of a configuration.

        `changes`: they change a session that exists, which has an agent perhaps.

        Raises:
            Forbidden: It does not.
        """
        if self.key.operator:
            return
        if config.get("webhooks") is not None:
            # A webhook names a secret of the workers, which signs for another tenant perhaps.
            raise Forbidden(f"the key {self.key.name!r} may not set webhooks: operators do", param="webhooks")
        if (priority := config.get("priority")) is not None and priority < DEFAULT_PRIORITY:
            # Calls of all tenants wait in one order of priorities.
            raise Forbidden(
                f"the key {self.key.name!r} may not set a priority before {DEFAULT_PRIORITY}: operators do",
                param="priority",
            )
        agent = config.get("agent")
        agent = agent if agent is None or isinstance(agent, str) else agent.name
        if agent is not None and self.key.agents is not None and agent not in self.key.agents:
            raise Forbidden(f"the key {self.key.name!r} may not use the agent {agent!r}", param="agent")
        has_agent = agent is not None or changes
        self.check_options(config, has_agent=has_agent)
        fields = {name for name, value in config.items() if value is not None}
        self._refuse_fixed(fields - SESSION_FIELDS - {"model", "fallbacks"} if has_agent else fields & TOOL_FIELDS)

    def check_copy(self, config: Mapping[str, Any]) -> None:
        """Check that the key could have opened a session with the configuration of another one, which it copies.

        An operator has set the webhooks and the priority, for the copies too. The policy has the agent's fields.

        Raises:
            Forbidden: It could not.
        """
        self.check_models(_list_set(config.get("context_policy")).get("summarization_model"))
        self.check_config({name: config[name] for name in config.keys() - {"context_policy", "priority", "webhooks"}})

    def check_models(self, *models: str | None) -> None:
        """Check that the key permits models, of a session or of one message.

        Raises:
            Forbidden: It does not permit one.
        """
        for model in models:
            if model is not None and not self.key.operator and not permits_model(self.key, model):
                raise Forbidden(f"the key {self.key.name!r} may not use the model {model!r}", param="model")

    def check_message(self, options: Mapping[str, Any], *, has_agent: bool = True) -> dict[str, Any]:
        """Check that the key permits the options of a message. Returns those with which it is sent.

        `has_agent`: its session has an agent perhaps.

        Raises:
            Forbidden: It does not.
        """
        self.check_options(options, has_agent=has_agent)
        if has_agent:
            self._refuse_fixed({name for name, value in options.items() if value is not None} - MESSAGE_FIELDS)
        return {**options, "shortens_only": True} if self._fixes_fields else dict(options)

    def check_options(self, options: Mapping[str, Any], *, has_agent: bool) -> None:
        """Check what configurations and messages have in common: the models, their options, and the policy.

        Raises:
            Forbidden: It does not.
        """
        policy, model_options = _list_set(options.get("context_policy")), _list_set(options.get("model_options"))
        writer = policy.get("summarization_model")
        self.check_models(options.get("model"), *(options.get("fallbacks") or ()), writer)
        if has_agent:
            self._refuse_fixed(policy.keys() - POLICY_FIELDS)
            self._refuse_fixed(model_options.keys() - MODEL_FIELDS)

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Check that the key permits a context: without a prompt, and with nothing of a provider's own.

        Raises:
            Forbidden: It does not.
        """
        self._refuse_fixed({"system_prompt"} if snapshot.system_prompt is not None else set())
        self.check_messages(snapshot.messages)

    def check_messages(self, messages: Sequence[SnapshotMessage]) -> None:
        """Check that the key permits messages that it has not sent to a session before.

        Raises:
            Forbidden: It does not.
        """
        own = any(message.provider_data is not None for message in messages)
        self._refuse_fixed({"provider_data"} if own else set())

    @property
    def _fixes_fields(self) -> bool:
        """Whether the key leaves to agents what they fix."""
        return self.key.agents is not None and not self.key.operator

    def _refuse_fixed(self, fields: Set[str]) -> None:
        if fields and self._fixes_fields:
            raise Forbidden(
                f"the key {self.key.name!r} may not set {', '.join(sorted(fields))}: the agent fixes it",
                param=min(fields),
            )

    async def check_room(self, scoped: str) -> None:
        """Check that the tenant may have one more open session, the named one, unless it is open already.

        Of sessions that other processes open at the same time, the server's count lacks some for about a second.

        Raises:
            QuotaExceeded: It has as many as the key permits.
        """
        if self.key.max_open_sessions is None:
            return
        async with self.new_sessions.lock(self.tenant):
            new = self.new_sessions.list(self.tenant)
            if scoped in new:
                return
            try:
                if await self._count_open(new) < self.key.max_open_sessions:
                    self.new_sessions.note(self.tenant, scoped)
                    return
                if await _is_open(self.clew, scoped):
                    return
            except RPCError as error:
                raise translate_error(error, "") from error
        raise QuotaExceeded(
            f"the tenant has {self.key.max_open_sessions} open sessions, as many as the key {self.key.name!r} "
            "permits: close one",
            retry_seconds=QUOTA_SECONDS,
        )

    async def _count_open(self, new: Sequence[str]) -> int:
        """Count the tenant's open sessions, and those that are new."""
        query = f'WorkflowType = "{WORKFLOW_TYPE}" AND ExecutionStatus = "Running"'
        if self.prefix:
            query += f' AND WorkflowId STARTS_WITH "{self.prefix}"'
        counted = 0
        if new:
            # Before the others: the server may come to count more of them meanwhile.
            named = ", ".join(f'"{scoped}"' for scoped in new)
            counted = (await self.clew.temporal.count_workflows(f"{query} AND WorkflowId IN ({named})")).count
        return (await self.clew.temporal.count_workflows(query)).count - counted + len(new)


def _list_set(value: Any) -> dict[str, Any]:
    """List the fields of a policy or of options that are set."""
    fields = value if isinstance(value, Mapping) else value.model_dump(exclude_unset=True) if value else {}
    return {name: field for name, field in fields.items() if field is not None}


def permits_model(key: Key, model: str) -> bool:
    """Whether a key that is no operator's permits a model."""
    if key.models is None:
        return key.agents is None
    return model in key.models or f"{model.partition(':')[0]}:*" in key.models


async def _is_open(clew: Clew, scoped: str) -> bool:
    try:
        described = await clew.temporal.get_workflow_handle(scoped).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return described.status is WorkflowExecutionStatus.RUNNING


_BEARER = HTTPBearer(auto_error=False, description="A key that `clew serve-key` has made.")


async def get_caller(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> Caller:
    """Find the caller of a request by its bearer key, and count the request.

    Raises:
        RateLimited: The key has sent too many requests.
        Unauthorized: There is no key, or an unknown one.
    """
    state = request.app.state
    keys: Keys = state.keys
    limiter: RateLimiter = state.limiter
    if credentials is None:
        raise Unauthorized("send a key: `Authorization: Bearer clew_…`")
    key = keys.find(credentials.credentials)
    if key is None:
        raise Unauthorized("the key is not known, or was revoked")
    request.state.key = key
    limiter.take(key)
    return Caller(key, state.clew, state.new_sessions)


Authorized = Annotated[Caller, Depends(get_caller)]
"""The caller of a request, as the parameter of a route."""
