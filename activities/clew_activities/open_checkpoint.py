"""The activity `open_checkpoint`: verifies a checkpoint, from which a session is to be started."""

from __future__ import annotations

import time
from typing import Any

from temporalio import activity

from clew.contract import SessionConfig
from clew.contract.policy import resolve
from clew.errors import InvalidInput, TokenMismatch
from clew_activities.archive import Archive
from clew_activities.checkpoint_tokens import Keys, verify_token
from clew_activities.error_translation import translate_archive_errors, translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.model_table import choose_policy
from clew_activities.registry import Registry
from clew_workflows.core.checkpoints import compute_fingerprint, list_fingerprinted
from clew_workflows.protocol import OpenCheckpoint, OpenedCheckpoint


class OpeningActivities:
    """Verifies checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(self, keys: Keys, registry: Registry, archive: Archive, namespace: str) -> None:
        self._keys = keys
        self._registry = registry
        self._archive = archive
        self._namespace = namespace

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, request: OpenCheckpoint) -> OpenedCheckpoint:
        """Verify a token. Returns the configuration of the session to start."""
        async with send_heartbeats(), translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, int(time.time()))
            config = read_config(payload, self._registry)
            async with translate_archive_errors():
                head = await self._archive.read_head(request.session_id)
            if head is not None:
                raise InvalidInput(f"session {request.session_id!r} exists already: restore under another id")
        return OpenedCheckpoint(config=config)


def read_config(payload: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """Read the configuration of a checkpoint.

    Raises:
        TokenMismatch: A session of that configuration would show its model other tools or another policy.
    """
    config = SessionConfig.model_validate(payload["config"], strict=False)
    agent = registry.agents.get(config.agent or "")
    if config.agent is not None:
        if agent is None:
            raise TokenMismatch(f"the worker has no agent {config.agent!r}, which the checkpoint's session had")
        config = agent.config.overlay(config)
    unknown = [name for name in config.tools if name not in registry.tools]
    if unknown:
        raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
    specs = [registry.tools[name].spec for name in config.tools]
    policy = resolve(agent=config.context_policy or choose_policy(config.model or ""))
    if compute_fingerprint(list_fingerprinted(config, policy, specs, agent)) != str(payload["fingerprint"]):
        raise TokenMismatch(
            "the agent, the tools' schemas or the model's policy have changed since the checkpoint was made"
        )
    return dict(payload["config"])
