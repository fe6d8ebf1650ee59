"""The rows of the comparison."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peers.temporal import ONE_RUN, RENEWED, STORED


@dataclass(frozen=True)
class Row:
    """A peer in one configuration.

    Attributes:
        title: Its name in the tables.
        module: Its module in `bench.peers`.
        environment: Its environment in `.venv/peers`; None: Clew's own.
        configuration: Its configuration.
    """

    title: str
    module: str
    environment: str | None
    configuration: str = ""


def _list_configurations(key: str, title: str, *configurations: str) -> dict[str, Row]:
    """List the rows of a peer that passes its messages by value."""
    suffixes = {ONE_RUN: "", RENEWED: "-renewed", STORED: "-stored"}
    return {f"{key}{suffixes[name]}": Row(f"{title}, {name}", f"peer_{key}", key, name) for name in configurations}


FLOOR = "floor"
ROWS: dict[str, Row] = {
    FLOOR: Row("floor", "peer_floor", None),
    "clew": Row("Clew", "peer_clew", None),
    **_list_configurations("pydantic_ai", "Pydantic AI on Temporal", ONE_RUN, RENEWED, STORED),
    **_list_configurations("openai_agents", "OpenAI Agents SDK on Temporal", ONE_RUN, RENEWED, STORED),
    **_list_configurations("langgraph_temporal", "LangGraph on Temporal", ONE_RUN, STORED),
    **_list_configurations("strands", "Strands on Temporal", ONE_RUN, STORED),
    "agent_harness": Row("Temporal Agent Harness", "peer_agent_harness", "agent_harness"),
    "langgraph_sqlite": Row("LangGraph with SQLite", "peer_langgraph_sqlite", "langgraph_sqlite"),
    "langgraph_sqlite-delta": Row(
        "LangGraph with SQLite, delta channel", "peer_langgraph_sqlite", "langgraph_sqlite", "delta channel"
    ),
    "dbos": Row("DBOS with SQLite", "peer_dbos", "dbos"),
}
