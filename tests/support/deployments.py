"""Workers with agents of their own, for tests that replace them by others."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from temporalio.worker import WorkerDeploymentConfig

from clew import Agent, Clew
from clew.hooks import Hook
from clew.tools import ToolDefinition
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.mcp.settings import McpSettings
from clew_activities.worker import make_worker
from clew_activities.worker.assembly import DEFAULT_THRESHOLDS, WORKFLOWS
from clew_workflows.protocol import RolloverThresholds
from tests.support.stack import KEYS, Stack


def make_client(stack: Stack) -> Clew:
    """Make a client with a task queue of its own, which no worker serves yet."""
    return Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")


@asynccontextmanager
async def run_deployment(
    stack: Stack,
    clew: Clew,
    *agents: Agent,
    tools: tuple[ToolDefinition, ...] = (),
    thresholds: RolloverThresholds = DEFAULT_THRESHOLDS,
    mcp: McpSettings | None = None,
    deployment: WorkerDeploymentConfig | None = None,
    workflows: Sequence[type] = WORKFLOWS,
    hooks: Sequence[Hook] = (),
    own_models: OwnModels = NO_OWN_MODELS,
) -> AsyncIterator[None]:
    """Run a worker with these agents, tools, MCP servers, hooks and models on the client's task queue."""
    async with make_http_client() as http:
        # A connection has at most one worker for each task queue.
        connection = await Clew.connect(stack.server.address)
        worker = make_worker(
            connection.temporal,
            task_queue=clew.task_queue,
            providers=load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url}),
            tools={tool.name: tool for tool in tools},
            agents=agents,
            http=http,
            store=stack.store,
            keys=KEYS,
            thresholds=thresholds,
            mcp=mcp,
            deployment=deployment,
            workflows=workflows,
            hooks=hooks,
            own_models=own_models,
        )
        async with worker:
            yield
