"""The activity `open_checkpoint`: verifies a checkpoint, from which a session is to be started."""

from __future__ import annotations

import time
from typing import Any

from temporalio import activity

from clew.contract import SessionConfig
from clew.contract.policy import resolve
from clew.errors import CheckpointUnavailable, InvalidInput, TokenMismatch
from clew_activities.archive import Archive
from clew_activities.checkpoint_tokens import Keys, verify_token
from clew_activities.error_translation import translate_archive_errors, translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.mcp.errors import McpUnavailable, UnknownMcpTool
from clew_activities.mcp.tools import McpTools
from clew_activities.model_table import NO_OWN_MODELS, OwnModels, choose_policy
from clew_activities.registry import Registry
from clew_workflows.core.checkpoints import compute_fingerprint, list_fingerprinted
from clew_workflows.protocol import OpenCheckpoint, OpenedCheckpoint


class OpeningActivities:
    """Verifies checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(
        self,
        keys: Keys,
        registry: Registry,
        archive: Archive,
        namespace: str,
        mcp_tools: McpTools,
        *,
        own_models: OwnModels = NO_OWN_MODELS,
    ) -> None:
        self._own_models = own_models
        self._keys = keys
        self._registry = registry
        self._mcp_tools = mcp_tools
        self._archive = archive
        self._namespace = namespace

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, request: OpenCheckpoint) -> OpenedCheckpoint:
        """Verify a token. Returns the configuration of the session to start."""
        async with send_heartbeats(), translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, int(time.time()))
            config = await read_config(payload, self._registry, self._mcp_tools, self._own_models)
            async with translate_archive_errors():
                head = await self._archive.read_head(request.session_id)
            if head is not None:
                raise InvalidInput(f"session {request.session_id!r} exists already: restore under another id")
        return OpenedCheckpoint(config=config)


async def read_config(
    payload: dict[str, Any], registry: Registry, mcp_tools: McpTools, own_models: OwnModels = NO_OWN_MODELS
) -> dict[str, Any]:
    """Read the configuration of a checkpoint.

    Raises:
        CheckpointUnavailable: An MCP server of the session's tools cannot be used at present.
        TokenMismatch: A session of that configuration would show its model other tools or another policy.
    """
    config = SessionConfig.model_validate(payload["config"], strict=False)
    agent = registry.agents.get(config.agent or "")
    if config.agent is not None:
        if agent is None:
            raise TokenMismatch(f"the worker has no agent {config.agent!r}, which the checkpoint's session had")
        config = agent.config.overlay(config)
    try:
        remote = (await mcp_tools.select_all(config.tools)).tools
    except UnknownMcpTool as error:
        raise TokenMismatch(f"the checkpoint's session had other tools: {error}") from None
    except McpUnavailable as error:
        raise CheckpointUnavailable(str(error)) from None
    unknown = [name for name in config.tools if name not in registry.tools and name not in remote]
    if unknown:
        raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
    selected = [
        tool for name in config.tools for tool in (remote[name] if name in remote else [registry.tools[name]])
    ]
    specs = list({tool.name: tool.spec for tool in selected}.values())
    policy = resolve(agent=config.context_policy or choose_policy(config.model or "", own_models))
    if compute_fingerprint(list_fingerprinted(config, policy, specs, agent)) != str(payload["fingerprint"]):
        raise TokenMismatch(
            "the agent, the tools' schemas or the model's policy have changed since the checkpoint was made"
        )
    return dict(payload["config"])
