"""The MCP servers that a worker may use, from the JSON file that CLEW_MCP names.

The file has the usual form: `{"mcpServers": {name: {"command", "args", "env", "cwd"} | {"url", "headers"}}}`. A
`${VARIABLE}` in a value is replaced by the worker's variable, so that the file holds no secret.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.invalid import Form, describe_problems
from clew_workflows.contract.names import is_server_name

VARIABLE = "CLEW_MCP"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class McpUnusable(ValueError):
    """The file of MCP servers cannot be used. The message names the file and the field, and never a value."""


class McpUnavailable(Exception):
    """A server cannot be used at present. The message is the operator's: it may have a command or a URL."""


class McpRefused(McpUnavailable):
    """The server has refused the request. The message is its answer, which a model reads."""


class _Settings(BaseModel):
    # Other programs that read the same file have further fields of their own.
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0


class ProcessSettings(_Settings):
    """A server that the worker starts as a child process and reaches by its standard input and output.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Its environment variables, beside the worker's that the package `mcp` passes on
            (`mcp.client.stdio.get_default_environment`).
        cwd: The folder that it starts in.
        timeout_seconds: The time for one call of a tool.
    """

    command: Annotated[str, Field(min_length=1)]
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    cwd: str | None = None


class HttpSettings(_Settings):
    """A server at a URL, by MCP's streamable HTTP.

    Attributes:
        url: The URL.
        headers: Headers of every request.
        timeout_seconds: The time for one call of a tool.
    """

    url: Annotated[str, Form(r"^https?://.*$", "a URL begins with http:// or https://"), Field(repr=False)]
    headers: dict[str, str] = Field(default_factory=dict, repr=False)


ServerSettings = ProcessSettings | HttpSettings


@dataclass(frozen=True)
class McpSettings:
    """The servers of a worker.

    Attributes:
        servers: The servers' settings by name.
        secrets: The values of variables that the file refers to.
    """

    servers: Mapping[str, ServerSettings] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)


def read_mcp_settings(environ: Mapping[str, str]) -> McpSettings:
    """Read the file that `CLEW_MCP` names; no servers if it is not set.

    Raises:
        ExtraMissing: The variable is set, and the extra `mcp` is not installed.
        McpUnusable: The file cannot be read, has another form, or refers to a variable that is not set.
    """
    path = environ.get(VARIABLE, "").strip()
    if not path:
        return McpSettings()
    if find_spec("mcp") is None:
        raise ExtraMissing(VARIABLE, "mcp")
    try:
        document: Any = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise McpUnusable(f"{VARIABLE}: {path!r} cannot be read: {type(error).__name__}") from None
    servers = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise McpUnusable(f"{VARIABLE}: {path!r} is not an object with the member 'mcpServers'")
    secrets: dict[str, None] = {}
    by_name: dict[str, ServerSettings] = {}
    for name, fields in servers.items():
        if not is_server_name(name):
            raise McpUnusable(
                f"{VARIABLE}: {name[:100]!r} in {path!r} is not the name of a server: it needs 1 to 32 letters, "
                "digits, '-' and single '_'"
            )
        try:
            by_name[name] = _read_server(_substitute_variables(fields, environ, secrets))
        except (ValueError, RecursionError) as error:
            raise McpUnusable(f"{VARIABLE}: server {name!r} in {path!r} cannot be used: {error}") from None
    return McpSettings(by_name, tuple(secrets))


def find_missing_program(settings: ServerSettings) -> str | None:
    """Find what a server's process needs and this machine does not have: its program, or its folder.

    Returns why the process cannot be started; None: it can be tried.
    """
    if not isinstance(settings, ProcessSettings):
        return None
    if settings.cwd is not None and not os.path.isdir(settings.cwd):
        return f"there is no folder {settings.cwd!r}"
    command = settings.command
    if os.path.dirname(command):
        # It is started in its folder.
        command = os.path.join(settings.cwd or "", command)
    if shutil.which(command, path=settings.env.get("PATH")) is None:
        return f"there is no program {settings.command!r}"
    return None


def _read_server(fields: Any) -> ServerSettings:
    if not isinstance(fields, dict) or ("command" in fields) == ("url" in fields):
        raise ValueError("it must have either 'command' or 'url'")
    if fields.get("type") == "sse":
        raise ValueError("the transport 'sse' is not supported: use the server's URL for streamable HTTP")
    settings_type = ProcessSettings if "command" in fields else HttpSettings
    try:
        return settings_type.model_validate(fields)
    except ValidationError as error:
        raise ValueError(describe_problems(error, settings_type)) from None


def _substitute_variables(value: Any, environ: Mapping[str, str], secrets: dict[str, None]) -> Any:
    """Replace the references to variables in all texts, and add the variables' values to `secrets`."""
    if isinstance(value, dict):
        return {name: _substitute_variables(member, environ, secrets) for name, member in value.items()}
    if isinstance(value, list):
        return [_substitute_variables(item, environ, secrets) for item in value]
    if not isinstance(value, str):
        return value

    def look_up(reference: re.Match[str]) -> str:
        if (content := environ.get(reference[1])) is None:
            raise ValueError(f"the variable {reference[1]} is not set")
        if content.strip():
            secrets[content.strip()] = None
        return content

    return _REFERENCE.sub(look_up, value)
