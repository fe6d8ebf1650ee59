"""The agents that a key may open sessions with: a room of its own, because several faces list them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from clew.serve.access import Authorized, Caller
from clew.serve.answers import answer
from clew_workflows.contract.lists import AgentsList, AgentSummary

router = APIRouter(prefix="/v1/agents", tags=["agents"])


@router.get("", response_model=AgentsList, operation_id="listAgents")
async def list_agents(caller: Authorized) -> JSONResponse:
    """List the agents that the key may use."""
    return answer(caller, AgentsList(agents=await find_agents(caller)))


async def find_agents(caller: Caller) -> tuple[AgentSummary, ...]:
    """Find the agents of the workers that a key may use.

    Raises:
        WorkerUnavailable: No worker answers.
    """
    agents, allowed = await caller.clew.list_agents(), caller.key.agents
    if allowed is None or caller.key.operator:
        return agents
    # The model of an agent is the operator's to know.
    return tuple(agent.model_copy(update={"model": None, "version": ""}) for agent in agents if agent.name in allowed)
