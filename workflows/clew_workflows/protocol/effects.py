"""What a session wants of the world, and what the world answers: effects and events as data.

The decisions in `clew_workflows.core` name an effect, and the activity that carries it out answers with an event.
Inputs are references, never conversations, so that the history grows by what is new and not by what is old.
"""

from __future__ import annotations

from clew_workflows.protocol.archive import Archiving, Recall, Thaw
from clew_workflows.protocol.checkpoints import SignCheckpoint
from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.model_calls import CallModel, ModelAnswered
from clew_workflows.protocol.preparation import DescribeModel, ModelProfile, Prepare, Prepared
from clew_workflows.protocol.summaries import Summarize, Summarized
from clew_workflows.protocol.tools import RunTools, ToolCall, ToolReturned

SessionEffect = Prepare | DescribeModel | CallModel | RunTools | Summarize
"""What decisions ask for, one at a time. The tool calls of a round run side by side."""

Effect = Prepare | DescribeModel | CallModel | ToolCall | Summarize | Archiving | Thaw | Recall | SignCheckpoint
"""What one activity carries out: `clew_workflows.shell.execution.make_plan` says which, and within which bounds."""

Event = Prepared | ModelProfile | ModelAnswered | ToolReturned | Summarized | Failure
"""What came of what a decision has asked for."""
