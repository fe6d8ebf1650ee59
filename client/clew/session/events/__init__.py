"""Following sessions: typed events, made from entries, statuses and heartbeats.

`types` has the events. `feed` makes them, purely, from what a hub in `follow` reads: one hub serves all viewers of a
session in this process. `server` asks the server. `open_calls` folds events to the tool calls that wait.
"""

from clew.session.events.follow import follow_request, follow_session, wait_for_decision
from clew.session.events.open_calls import OpenCalls
from clew.session.events.types import (
    ApprovalRequired,
    EntryCommitted,
    Restarted,
    ResultRequired,
    Retrying,
    SessionEvent,
    StatusChanged,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
)

__all__ = [
    "ApprovalRequired",
    "EntryCommitted",
    "OpenCalls",
    "Restarted",
    "ResultRequired",
    "Retrying",
    "SessionEvent",
    "StatusChanged",
    "SubagentWaiting",
    "TextAdded",
    "ThinkingAdded",
    "ToolFinished",
    "ToolProgressed",
    "ToolStarted",
    "follow_request",
    "follow_session",
    "wait_for_decision",
]
