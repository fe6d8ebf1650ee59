"""Keys and their tenants: what a request may do, and which sessions it may reach.

A tenant's session `ID` is the Temporal workflow `TENANT:ID`. Neither a tenant nor an id has a colon, so no request
can name a session of another tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Unpack

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from clew.serve.problems import Forbidden, QuotaExceeded, RateLimited, Unauthorized
from clew.session import Clew, Session
from clew.session.connection import validate_session_id
from clew.session.options import SessionOptions
from clew.session.transport import translate_error
from clew_workflows.contract.config import SessionConfig
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.names import WORKFLOW_TYPE, AgentName, ModelName

log = logging.getLogger("clew.serve")

CALLER_ID = r"^[A-Za-z0-9_.-]{1,128}$"
"""The pattern of the session ids that callers choose."""
MAX_CHOSEN_CHARACTERS = 160
"""Longest workflow id of a new session: the ids of its subagents begin with it, and a longer one would be hashed."""
ALL_TENANTS = "*"
"""The tenant of an operator's key, which reaches all sessions of the namespace by the ids that Temporal knows."""
TENANT = "tenant"
"""The name of the tenant in a session's metadata."""
TOKEN_PREFIX = "clew_"
"""What each key begins with, so that scanners for leaked secrets find it."""
TOKEN_BYTES = 32
RELOAD_SECONDS = 5.0
"""Seconds after which the file of keys is looked at again."""
DEFAULT_PRIORITY: int = SessionConfig.model_fields["priority"].default
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
LIMIT_FIELDS = frozenset({"max_iterations", "timeout_seconds"})
"""The options of a message that replace an agent's limits."""

TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_CHOSEN = re.compile(CALLER_ID)
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
    hash: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] = Field(repr=False)
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
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise InvalidInput(f"the file of keys {path}: key {number}: {field}: {first['msg']}") from None
    for field in ("name", "hash"):
        values = [getattr(key, field) for key in keys]
        if len(set(values)) < len(values):
            raise InvalidInput(f"the file of keys {path}: two keys have the same {field}")
    return tuple(keys)


def _read_stamp(path: Path | None) -> tuple[int, int] | None:
    """Read what tells two states of a file apart; None: there is no file."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size) if stat else None


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


@dataclass(frozen=True)
class Caller:
    """What a request may do. Its methods take and return the ids that callers know.

    Attributes:
        key: The key of the request.
        clew: The connection to Temporal.
    """

    key: Key
    clew: Clew

    @property
    def tenant(self) -> str:
        """The tenant of the request."""
        return self.key.tenant

    @property
    def prefix(self) -> str:
        """What the workflow ids of the tenant's sessions begin with."""
        return "" if self.tenant == ALL_TENANTS else f"{self.tenant}:"

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
        if not _CHOSEN.fullmatch(session_id) or len(scoped) > MAX_CHOSEN_CHARACTERS:
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

    async def open(self, session_id: str, **config: Unpack[SessionOptions]) -> Session:
        """Open a session of this tenant as `Clew.open` does. Its metadata has the tenant.

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
        return await self.clew.open(scoped, **config)

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
        self.check_message(config, has_agent=has_agent)
        fields = {name for name, value in config.items() if value is not None}
        self._refuse_fixed(fields - SESSION_FIELDS - {"model", "fallbacks"} if has_agent else fields & TOOL_FIELDS)

    def check_models(self, *models: str | None) -> None:
        """Check that the key permits models, of a session or of one message.

        Raises:
            Forbidden: It does not permit one.
        """
        for model in models:
            if model is not None and not self.key.operator and not _permits(self.key, model):
                raise Forbidden(f"the key {self.key.name!r} may not use the model {model!r}", param="model")

    def check_message(self, options: Mapping[str, Any], *, has_agent: bool = True) -> None:
        """Check that the key permits the options of a message: its models, its limits, and the prompt of its policy.

        `has_agent`: its session has an agent perhaps.

        Raises:
            Forbidden: It does not.
        """
        policy = options.get("context_policy") or {}
        policy = policy if isinstance(policy, Mapping) else policy.model_dump(exclude_unset=True)
        writer = policy.get("summarization_model")
        self.check_models(options.get("model"), *(options.get("fallbacks") or ()), writer)
        if has_agent:
            self.check_prompt(policy.get("system_prompt"))
            self._refuse_fixed({name for name in LIMIT_FIELDS if options.get(name) is not None})

    def check_prompt(self, prompt: str | None) -> None:
        """Check that the key permits a system prompt that takes the place of an agent's.

        Raises:
            Forbidden: It does not.
        """
        self._refuse_fixed({"system_prompt"} if prompt is not None else set())

    def _refuse_fixed(self, fields: Set[str]) -> None:
        if fields and self.key.agents is not None and not self.key.operator:
            raise Forbidden(
                f"the key {self.key.name!r} may not set {', '.join(sorted(fields))}: the agent fixes it",
                param=min(fields),
            )

    async def check_room(self, scoped: str | None = None) -> None:
        """Check that the tenant may have one more open session, unless the named one is open already.

        The server's count is about a second old, so that sessions which are opened at once may be a few more.

        Raises:
            QuotaExceeded: It has as many as the key permits.
        """
        if self.key.max_open_sessions is None:
            return
        running = f'WorkflowType = "{WORKFLOW_TYPE}" AND ExecutionStatus = "Running"'
        query = f'{running} AND WorkflowId STARTS_WITH "{self.prefix}"' if self.prefix else running
        try:
            if (await self.clew.temporal.count_workflows(query)).count < self.key.max_open_sessions:
                return
            if scoped is not None and await _is_open(self.clew, scoped):
                return
        except RPCError as error:
            raise translate_error(error, "") from error
        raise QuotaExceeded(
            f"the tenant has {self.key.max_open_sessions} open sessions, as many as the key {self.key.name!r} "
            "permits: close one",
            retry_seconds=QUOTA_SECONDS,
        )


def _permits(key: Key, model: str) -> bool:
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
    return Caller(key, state.clew)


Authorized = Annotated[Caller, Depends(get_caller)]
"""The caller of a request, as the parameter of a route."""
