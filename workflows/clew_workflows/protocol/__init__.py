"""The inputs and the answers of activities, and the task queues between workflows and activities."""

from clew_workflows.protocol.archive import ArchiveRef, Archiving, Recall, Recalled, Thaw, Thawed
from clew_workflows.protocol.checkpoints import (
    CheckpointSignature,
    DraftQuery,
    OpenCheckpoint,
    OpenedCheckpoint,
    SignCheckpoint,
)
from clew_workflows.protocol.effects import Effect, Event, SessionEffect
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.forks import Fork
from clew_workflows.protocol.model_calls import (
    CallModel,
    ModelAnswered,
    ModelReply,
    Outdated,
    RequestedTool,
    number_tool_calls,
)
from clew_workflows.protocol.packed import Packed, inflate
from clew_workflows.protocol.preparation import DescribeModel, ModelProfile, Prepare, Prepared, ResolvedAgent
from clew_workflows.protocol.queues import name_model_queue, name_tool_queue
from clew_workflows.protocol.rollover import RolloverThresholds
from clew_workflows.protocol.summaries import Summarize, Summarized, WrittenSummary
from clew_workflows.protocol.tools import (
    FUNCTION,
    STORING_SECONDS,
    AgentRoute,
    ExternalRoute,
    FunctionRoute,
    McpRoute,
    PlannedCall,
    RemoteRoute,
    ResolvedTool,
    Route,
    RunTool,
    RunTools,
    ToolAnswered,
    ToolReturned,
    make_idempotency_key,
)

__all__ = [
    "FUNCTION",
    "STORING_SECONDS",
    "AgentRoute",
    "ArchiveRef",
    "Archiving",
    "CallModel",
    "CheckpointSignature",
    "DescribeModel",
    "DraftQuery",
    "Effect",
    "Event",
    "ExternalRoute",
    "Failure",
    "Fork",
    "FunctionRoute",
    "McpRoute",
    "ModelAnswered",
    "ModelProfile",
    "ModelReply",
    "OpenCheckpoint",
    "OpenedCheckpoint",
    "Outdated",
    "Packed",
    "PlannedCall",
    "Prepare",
    "Prepared",
    "Recall",
    "Recalled",
    "RemoteRoute",
    "RequestedTool",
    "ResolvedAgent",
    "ResolvedTool",
    "RolloverThresholds",
    "Route",
    "RunTool",
    "RunTools",
    "SessionEffect",
    "SignCheckpoint",
    "Summarize",
    "Summarized",
    "Thaw",
    "Thawed",
    "ToolAnswered",
    "ToolReturned",
    "WrittenSummary",
    "inflate",
    "make_idempotency_key",
    "name_model_queue",
    "name_tool_queue",
    "number_tool_calls",
]
