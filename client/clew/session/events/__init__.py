"""Following sessions: typed events, made from entries, statuses and heartbeats.

`event_types` has the events. `feed` makes them, purely, from what a hub in `follow` reads: one hub serves all viewers
of a session in this process. `history_polls` asks the server. `turn` folds events to the changes that faces encode.
"""

from clew.session.events.event_types import (
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
from clew.session.events.follow import follow_request, follow_session, read_live_status, wait_for_decision
from clew.session.events.turn import Change, LiveTurn, Voided, Waits

__all__ = [
    "ApprovalRequired",
    "Change",
    "EntryCommitted",
    "LiveTurn",
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
    "Voided",
    "Waits",
    "follow_request",
    "follow_session",
    "read_live_status",
    "wait_for_decision",
]
