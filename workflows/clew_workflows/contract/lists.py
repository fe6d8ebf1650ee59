"""Sessions in lists: their summaries and their search attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import (
    MAX_KEYWORD_BYTES,
    MAX_KEYWORD_CHARACTERS,
    MAX_TAGS_BYTES,
    MAX_TITLE_CHARACTERS,
)
from clew_workflows.contract.names import AgentName, SessionId
from clew_workflows.contract.outcomes import Output
from clew_workflows.contract.validation import Input

# Lists of sessions: what they show of each, and the argument and the answer of the workflow `ListSessions`.


ListedStatus = Literal[
    "idle",
    "working",
    "awaiting_approval",
    "awaiting_external",
    "failed",
    "hibernated",
    "closed",
    "interrupted",
]
"""`failed`: idle, and the last request failed. `interrupted`: the workflow was terminated or has timed out."""
_TIME = Form(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", "a time is written in UTC, for example 2026-01-31T12:00:00.000Z"
)
_READ_CHARACTERS = 1_000


class SessionSummary(Output):
    """A session in a list.

    Attributes:
        session_id: The session.
        status: What it was doing when the list's source was last updated. Absent: the source does not know it.
        title: The title: metadata `title`, or the first words of the first message. If metadata `title` is empty,
            there is none.
        agent: Its agent.
        model: Its model, as `provider:model`.
        user: Metadata `user`.
        tags: Metadata `tags`, split at commas.
        tokens: Tokens of prompts and replies, those of its subagents included.
        cost_usd: The cost, in USD, of the calls whose list price is known, those of its subagents included.
        started_at: When it started: ISO 8601 in UTC.
        active_at: When its newest entry was committed by the time of the last update: ISO 8601 in UTC.
        parent: The session that has started it as its subagent, or that it was forked from.
        metadata: Its metadata.
        archived: Whether the list has it from the archive: then its workflow has ended.
    """

    session_id: str
    status: ListedStatus | None = None
    title: str | None = None
    agent: str | None = None
    model: str | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    tokens: int | None = None
    cost_usd: float | None = None
    started_at: str | None = None
    active_at: str | None = None
    parent: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    archived: bool = False


class ListSessionsInput(Input):
    """The argument of the workflow `ListSessions`, which lists the sessions that have an archive.

    Attributes:
        user: Sessions whose metadata `user` is this.
        status: Sessions in this status.
        agent: Sessions with this agent.
        since: Sessions that were active since then: ISO 8601 in UTC with milliseconds, `2026-11-01T00:00:00.000Z`.
        prefix: Sessions whose ids begin with this.
        after: Begin after the session of this id: the `next_after` of the page before.
    """

    user: Annotated[str, StringConstraints(max_length=2000)] | None = None
    status: ListedStatus | None = None
    agent: AgentName | None = None
    since: Annotated[str, _TIME] | None = None
    prefix: SessionId | None = None
    after: SessionId | None = None


class SessionsPage(Output):
    """A page of sessions, in the order of their ids.

    Attributes:
        sessions: The sessions. One that is not `archived` has an archive too, but its workflow has not ended in good
            order: it runs, or is `interrupted`.
        next_after: The `after` of the next page; absent on the last page. A page may be empty and have one.
    """

    sessions: tuple[SessionSummary, ...]
    next_after: str | None = None


class ListAgentsInput(Input):
    """The argument of the workflow `ListAgents`, which lists the agents of a worker."""


class AgentSummary(Output):
    """An agent that a worker has.

    Attributes:
        name: The name.
        version: The version: a digest of its configuration, its tools and its label.
        label: The label of its author.
        model: The model.
    """

    name: str
    version: str
    label: str | None = None
    model: str | None = None


class AgentsList(Output):
    """The agents of a worker.

    Attributes:
        agents: The agents, by their names.
        providers: The names of the providers that its models may have. Absent: they are the operator's to know.
    """

    agents: tuple[AgentSummary, ...]
    providers: tuple[str, ...] | None = None


def matches(summary: SessionSummary, filters: ListSessionsInput) -> bool:
    """Whether a session meets every filter."""
    expected = {"user": filters.user, "status": filters.status, "agent": filters.agent}
    if any(value is not None and getattr(summary, name) != value for name, value in expected.items()):
        return False
    if not summary.session_id.startswith(filters.prefix or ""):
        return False
    return filters.since is None or (summary.active_at or "") >= filters.since


def split_tags(metadata: dict[str, str]) -> tuple[str, ...]:
    """Split metadata `tags` at commas."""
    tags = (tag.strip() for tag in metadata.get("tags", "").split(","))
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def choose_title(metadata: Mapping[str, str], opening: str | None) -> str | None:
    """Choose the title: that of the metadata, or the first words of the first message. An empty one means none."""
    title = metadata.get("title")
    return (opening if title is None else cut_title(title)) or None


def cut_title(text: str) -> str:
    """Cut a text to a title of one line: its first words."""
    words = " ".join(text[:_READ_CHARACTERS].split())
    words = "".join(character for character in words if character.isprintable())
    if len(words) <= MAX_TITLE_CHARACTERS:
        return words
    cut = words[: MAX_TITLE_CHARACTERS - 1]
    return (cut.rpartition(" ")[0] or cut) + "…"


# Temporal's search attributes of sessions: their names, their types and the form of their values.


AttributeType = Literal["Keyword", "KeywordList", "Int", "Double", "Datetime"]
AttributeValue = str | int | float | tuple[str, ...]

SEARCH_ATTRIBUTES: Mapping[str, AttributeType] = {
    "ClewAgent": "Keyword",
    "ClewModel": "Keyword",
    "ClewStatus": "Keyword",
    "ClewUser": "Keyword",
    "ClewTags": "KeywordList",
    "ClewTokens": "Int",
    "ClewCostUsd": "Double",
    "ClewLastActive": "Datetime",
    "ClewParent": "Keyword",
}
"""The types of the search attributes, as `clew setup-namespace` registers them."""


def make_attributes(summary: SessionSummary) -> dict[str, AttributeValue]:
    """Make the values of a session's search attributes. A session without a value has no such attribute."""
    texts = {
        "ClewAgent": summary.agent,
        "ClewModel": summary.model,
        "ClewStatus": summary.status,
        "ClewUser": summary.user,
        "ClewParent": summary.parent,
    }
    values: dict[str, AttributeValue] = {name: cut_keyword(text) for name, text in texts.items() if text}
    if summary.active_at:
        values["ClewLastActive"] = summary.active_at
    if tags := cut_tags(summary.tags):
        values["ClewTags"] = tags
    if summary.tokens is not None:
        values["ClewTokens"] = summary.tokens
    if summary.cost_usd is not None:
        # Sums of floats have noise that lists would show.
        values["ClewCostUsd"] = round(summary.cost_usd, 6)
    return {name: value for name, value in values.items() if value != ""}


@lru_cache(maxsize=1024)
def cut_keyword(text: str) -> str:
    """Cut a text to a keyword that each visibility store of Temporal takes and can be queried for.

    It is short, and has no control characters, quotation marks and backslashes: no query finds these.
    """
    text = "".join(filter(_is_usable, text))[:MAX_KEYWORD_CHARACTERS]
    while len(json.dumps(text)) > MAX_KEYWORD_BYTES:
        text = text[:-1]
    return text


def _is_usable(character: str) -> bool:
    return character.isprintable() and character not in '"\\'


def cut_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Cut tags to keywords, and leave out the last ones if they are too many."""
    kept: list[str] = []
    for tag in dict.fromkeys(map(cut_keyword, tags)):
        if tag and len(json.dumps([*kept, tag])) <= MAX_TAGS_BYTES:
            kept.append(tag)
    return tuple(kept)
