"""Effects and events, as data.

A decision of `clew_workflows.core` names an effect. An activity carries it out, and its answer is an event for the
next decision. The input of an activity refers to the thread by lane and seq and holds no messages, so that the
history grows only by new text.
"""

from __future__ import annotations

from clew_workflows.protocol.archive import Archiving, Recall, Thaw
from clew_workflows.protocol.checkpoints import SignCheckpoint
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.hooks import HooksAnswered, RunHooks
from clew_workflows.protocol.model_calls import CallModel, Declined, ModelAnswered, ModelStopped, Outdated
from clew_workflows.protocol.preparation import DescribeModel, ModelProfile, Prepare, Prepared
from clew_workflows.protocol.summaries import Summarize, Summarized
from clew_workflows.protocol.tools import PlannedCall, RunTools, ToolReturned

SessionEffect = Prepare | DescribeModel | RunHooks | CallModel | RunTools | Summarize
"""The effects of decisions, one at a time. The tool calls of a round run in parallel."""

Effect = (
    Prepare
    | DescribeModel
    | RunHooks
    | CallModel
    | PlannedCall
    | Summarize
    | Archiving
    | Thaw
    | Recall
    | SignCheckpoint
)
"""The input of one activity: `clew_workflows.shell.execution.make_plan` names the activity and its timeouts."""

Event = (
    Prepared
    | ModelProfile
    | ModelAnswered
    | ModelStopped
    | HooksAnswered
    | Outdated
    | Declined
    | ToolReturned
    | Summarized
    | Failure
)
"""The result of an effect."""
