"""What a session wants of the world, and what the world answers: effects and events as data.

The decisions in `clew_workflows.core` name an effect, and the activity that carries it out answers with an event.
Inputs are references, never conversations, so that the history grows by what is new and not by what is old.
"""

from __future__ import annotations

from clew_workflows.protocol.failures import Failure
from clew_workflows.protocol.model_calls import CallModel, ModelAnswered
from clew_workflows.protocol.preparation import DescribeModel, ModelProfile, Prepare, Prepared
from clew_workflows.protocol.summaries import Summarize, Summarized
from clew_workflows.protocol.tools import RunTools, ToolReturned

Effect = Prepare | DescribeModel | CallModel | RunTools | Summarize
Event = Prepared | ModelProfile | ModelAnswered | ToolReturned | Summarized | Failure
