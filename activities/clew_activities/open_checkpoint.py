"""The activity `open_checkpoint`: verifies a checkpoint, from which a session is to be started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from temporalio import activity

from clew.contract import SessionConfig
from clew.contract.policy import resolve
from clew.errors import CheckpointUnavailable, InvalidInput, TokenMismatch
from clew.tools import ToolDefinition
from clew_activities.archive import Archive
from clew_activities.checkpoint_tokens import Keys, verify_token
from clew_activities.error_translation import translate_archive_errors, translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.mcp.errors import McpUnavailable, UnknownMcpTool
from clew_activities.mcp.tools import McpTools
from clew_activities.model_table import choose_policy
from clew_activities.tools import Tools
from clew_workflows.core.checkpoints import compute_fingerprint, list_fingerprinted
from clew_workflows.protocol import OpenCheckpoint, OpenedCheckpoint


class OpeningActivities:
    """Verifies checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(self, keys: Keys, tools: Tools, archive: Archive, namespace: str, mcp_tools: McpTools) -> None:
        self._keys = keys
        self._tools = tools
        self._mcp_tools = mcp_tools
        self._archive = archive
        self._namespace = namespace

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, request: OpenCheckpoint) -> OpenedCheckpoint:
        """Verify a token. Returns the configuration of the session to start."""
        async with send_heartbeats(), translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, int(time.time()))
            try:
                mcp_tools = await self._mcp_tools.select_all(payload["config"].get("tools", ()))
            except UnknownMcpTool as error:
                raise TokenMismatch(f"the checkpoint's session had other tools: {error}") from None
            except McpUnavailable as error:
                raise CheckpointUnavailable(str(error)) from None
            config = read_config(payload, self._tools, mcp_tools)
            async with translate_archive_errors():
                head = await self._archive.read_head(request.session_id)
            if head is not None:
                raise InvalidInput(f"session {request.session_id!r} exists already: restore under another id")
        return OpenedCheckpoint(config=config)


def read_config(
    payload: dict[str, Any], tools: Tools, mcp_tools: Mapping[str, Sequence[ToolDefinition]] = MappingProxyType({})
) -> dict[str, Any]:
    """Read the configuration of a checkpoint. `mcp_tools`: the tools of MCP servers, by the names that mean them.

    Raises:
        TokenMismatch: A session of that configuration would show its model other tools or another policy.
    """
    config = SessionConfig.model_validate(payload["config"], strict=False)
    unknown = [name for name in config.tools if name not in tools and name not in mcp_tools]
    if unknown:
        raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
    selected = [tool for name in config.tools for tool in mcp_tools.get(name) or [tools[name]]]
    specs = list({tool.name: tool.spec for tool in selected}.values())
    policy = resolve(agent=config.context_policy or choose_policy(config.model))
    if compute_fingerprint(list_fingerprinted(config, policy, specs)) != str(payload["fingerprint"]):
        raise TokenMismatch("the tools' schemas or the model's policy have changed since the checkpoint was made")
    return dict(payload["config"])
