"""Every activity of a worker, by the task queue that it is polled from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from clew_activities.archive import Archive, Store
from clew_activities.archive.blobs import BlobActivities, Blobs
from clew_activities.archive.deletion import DeletionActivities
from clew_activities.archive.fork_session import ForkingActivities
from clew_activities.archive.hibernation import ArchiveActivities
from clew_activities.archive.listing import ListingActivities, SearchAttributes
from clew_activities.archive.reading import ReadingActivities
from clew_activities.archive.thread_source import Threads
from clew_activities.archive.uploads import UploadActivities, Uploads
from clew_activities.callers import await_request, open_session, read_last_seq, send_message, submit_input
from clew_activities.checkpoints import CheckpointActivities, Keys
from clew_activities.model.call_model import CallSlots, ModelActivities
from clew_activities.model.load_media import MediaLoader
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, load_prices
from clew_activities.model.prepare import PrepareActivities
from clew_activities.model.summarize import SummaryActivities
from clew_activities.providers import Providers
from clew_activities.tools.mcp.settings import McpSettings
from clew_activities.tools.mcp.tools import McpTools
from clew_activities.tools.registry import Deployment, Registry
from clew_activities.tools.run_hooks import HookActivities
from clew_activities.tools.run_tool import ToolActivities
from clew_activities.tools.stored_results import Results
from clew_activities.webhooks import NO_WEBHOOKS, WebhookActivities, WebhookSettings
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.temporal_faults.slow_timers import begin_task

Activity = Callable[..., Any]
NO_LIMITS: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The activities of a worker.

    Attributes:
        registry: The worker's tools and agents.
        tools: Runs the tools. It is closed when the worker has stopped.
        mcp_tools: The tools of MCP servers. They are closed when the worker has stopped.
        session_activities: Those of the sessions' own task queue.
        model_activities: Those of the task queue of model calls.
        provider_activities: Those of the task queues of limited providers.
        tool_activities: Those of the task queue of tool calls.
        caller_activities: Those of the task queue of other workflows' calls, and of webhooks.
        providers: The names of the providers.
        rate_limits: The most model calls in a second, by provider.
    """

    registry: Registry
    tools: ToolActivities
    mcp_tools: McpTools
    providers: Sequence[str]
    rate_limits: Mapping[str, float]
    session_activities: Sequence[Activity]
    model_activities: Sequence[Activity]
    provider_activities: Sequence[Activity]
    tool_activities: Sequence[Activity]
    caller_activities: Sequence[Activity]


def make_parts(
    namespace: str,
    *,
    providers: Providers,
    registry: Registry,
    http: httpx.AsyncClient,
    store: Store,
    keys: Keys,
    thresholds: RolloverThresholds,
    mcp: McpSettings,
    encrypts: bool = False,
    rate_limits: Mapping[str, float] = NO_LIMITS,
    model_calls: int,
    direct_calls: int = 0,
    own_models: OwnModels = NO_OWN_MODELS,
    webhooks: WebhookSettings = NO_WEBHOOKS,
) -> Parts:
    """Make all activities.

    With `encrypts`, labels and search attributes hold no texts of conversations. `model_calls` run at the same time,
    of them `direct_calls` of the sessions' own task queue.

    Raises:
        EncodingUnavailable: A vocabulary cannot be loaded. All workers must count tokens alike.
    """
    limited = tuple(sorted(rate_limits))
    registry = replace(registry, deployment=webhooks.extend(registry.deployment))
    load_encodings()
    load_prices()
    archive = Archive(store, namespace)
    blobs = Blobs(archive)
    threads = Threads(archive)
    mcp_tools = McpTools(mcp, providers.redaction)
    attributes = SearchAttributes()
    preparing = PrepareActivities(
        providers,
        registry,
        archive,
        thresholds,
        mcp_tools,
        search_attributes=attributes,
        shows_texts=not encrypts,
        limited=limited,
        calls_models=direct_calls > 0,
        own_models=own_models,
        webhooks=webhooks,
    )
    models = ModelActivities(
        providers,
        http,
        Deployment(registry.deployment, mcp_tools),
        tuple(registry.hooks),
        limited,
        media=MediaLoader(blobs),
        own_models=own_models,
        blobs=blobs,
    )
    checkpoints = CheckpointActivities(
        keys, registry, archive, namespace, mcp_tools, own_models=own_models, blobs=blobs
    )
    archiving = ArchiveActivities(archive, attributes)
    reading = ReadingActivities(archive)
    storing, uploading = BlobActivities(blobs), UploadActivities(Uploads(blobs))
    running = ToolActivities(registry.tools, Results(archive, threads), mcp_tools=mcp_tools, blobs=blobs)
    summarize = SummaryActivities(providers, http, archive, threads, own_models).summarize
    slots = CallSlots(models, model_calls, direct_calls)
    return Parts(
        registry=registry,
        tools=running,
        mcp_tools=mcp_tools,
        providers=providers.names,
        rate_limits=rate_limits,
        session_activities=[
            preparing.prepare,
            preparing.describe_model,
            preparing.list_agents,
            begin_task,
            archiving.archive,
            archiving.thaw,
            archiving.recall,
            checkpoints.sign_checkpoint,
            checkpoints.open_checkpoint,
            checkpoints.put_context,
            reading.read_thread,
            reading.read_context,
            ForkingActivities(archive).fork_session,
            DeletionActivities(archive).delete_session,
            ListingActivities(archive).list_sessions,
            storing.put_blob,
            storing.end_upload,
            storing.get_blob,
            storing.check_blobs,
            uploading.start_upload,
            uploading.finish_upload,
            slots.call_directly,
        ],
        model_activities=[slots.call_from_queue, summarize],
        provider_activities=[models.call_model, summarize],
        tool_activities=[
            running.run_tool,
            HookActivities(registry.hooks, running.threads, providers.redaction, blobs).run_hooks,
        ],
        caller_activities=[
            open_session,
            send_message,
            await_request,
            submit_input,
            read_last_seq,
            WebhookActivities(webhooks).send_notice,
        ],
    )
