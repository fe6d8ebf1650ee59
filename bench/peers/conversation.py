"""What is said in every measured conversation, and the tool that every agent has.

The modules `peer_*` run in environments of their own: what they import has only the standard library.
"""

from __future__ import annotations

import os

QUESTION = "A question that a user might ask, in so many words. " * 17
ANSWER = "An answer that a model might give, with this and that. " * 17
FINDING = "A finding of the tool, in a page of text that the model reads. " * 80
EFFECTS = "PEERS_EFFECTS"
"""The variable that names the file of the tool's effects."""

TOOL = "look_up"
TOOL_DESCRIPTION = "Look a number up."
MODEL = "any"
INSTRUCTIONS = "You answer questions."

MODEL_CALL_SECONDS = 60
"""The longest model call that every peer permits."""
HEARTBEAT_SECONDS = 5
"""Seconds without a heartbeat after which a model call counts as lost, where a peer can say so."""
MOST_MODEL_CALLS = 300
"""Model calls that a turn may take, where a peer has a limit."""


def look_up(number: int) -> str:
    """Look a number up: leave a line in the file of effects, and return 5 KB."""
    with open(os.environ[EFFECTS], "a", encoding="utf-8") as effects:
        effects.write(f"{number}\n")
    return FINDING
