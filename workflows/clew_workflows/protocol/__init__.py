"""What workflows send to activities and what comes back, and the task queues between them."""

from clew_workflows.protocol.archive import ArchiveRef, Archiving, Recall, Recalled, Thaw, Thawed, Thresholds
from clew_workflows.protocol.checkpoints import DraftQuery, OpenCheckpoint, OpenedCheckpoint, SignCheckpoint, Signed
from clew_workflows.protocol.effects import Effect, Event, SessionEffect
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.forks import Fork
from clew_workflows.protocol.model_calls import AskedTool, CallModel, ModelAnswered, ModelReply
from clew_workflows.protocol.packed import Packed, inflate
from clew_workflows.protocol.preparation import DescribeModel, ModelProfile, Prepare, Prepared
from clew_workflows.protocol.queues import model_queue, tool_queue
from clew_workflows.protocol.summaries import Summarize, Summarized, Written
from clew_workflows.protocol.tools import (
    STORING_SECONDS,
    ResolvedTool,
    RunTool,
    RunTools,
    ToolAnswered,
    ToolCall,
    ToolReturned,
    idempotency_key,
)

__all__ = [
    "STORING_SECONDS",
    "ArchiveRef",
    "Archiving",
    "AskedTool",
    "CallModel",
    "DescribeModel",
    "DraftQuery",
    "Effect",
    "Event",
    "Failure",
    "Fork",
    "ModelAnswered",
    "ModelProfile",
    "ModelReply",
    "OpenCheckpoint",
    "OpenedCheckpoint",
    "Packed",
    "Prepare",
    "Prepared",
    "Recall",
    "Recalled",
    "ResolvedTool",
    "RunTool",
    "RunTools",
    "SessionEffect",
    "SignCheckpoint",
    "Signed",
    "Summarize",
    "Summarized",
    "Thaw",
    "Thawed",
    "Thresholds",
    "ToolAnswered",
    "ToolCall",
    "ToolReturned",
    "Written",
    "idempotency_key",
    "inflate",
    "model_queue",
    "tool_queue",
]
