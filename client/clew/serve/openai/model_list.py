"""The agents and the models that a key may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from clew.serve.access import Authorized, Caller, permits_model
from clew.serve.agents import find_agents
from clew.serve.openai.objects import ModelObject, ModelsPage
from clew.serve.openai.refusals import ModelNotFound
from clew.serve.worker_watch import WatchedRoute
from clew_workflows.contract.names import MODEL_NAME

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=WatchedRoute)


@router.get("", operation_id="listModels", response_model=ModelsPage)
async def list_models(caller: Authorized) -> Response:
    """List the agents and the models that the key may use. `provider:*` permits others, too."""
    return JSONResponse({"object": "list", "data": await _list(caller)})


@router.get("/{model:path}", operation_id="getModel", response_model=ModelObject)
async def get_model(caller: Authorized, model: str) -> Response:
    """Read an agent or a model that the key may use."""
    for made in await _list(caller):
        if made["id"] == model:
            return JSONResponse(made)
    # A key without models is told of those of the agents alone, as the list is.
    if caller.key.models is not None and MODEL_NAME.matches(model) and permits_model(caller.key, model):
        return JSONResponse(_describe(model, model.partition(":")[0]))
    raise ModelNotFound(f"The model '{model[:200]}' does not exist or you do not have access to it.", param="model")


async def _list(caller: Caller) -> list[dict[str, Any]]:
    key = caller.key
    agents, models = list(key.agents or ()), [name for name in key.models or () if not name.endswith(":*")]
    if key.agents is None:
        known = await find_agents(caller)
        agents = [agent.name for agent in known]
        if key.models is None:
            # It may use any model: those of the agents are known.
            models = sorted({agent.model for agent in known if agent.model})
    owned = [*((name, "clew") for name in agents), *((name, name.partition(":")[0]) for name in models)]
    return [_describe(name, owner) for name, owner in owned]


def _describe(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}
