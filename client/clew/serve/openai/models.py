"""The agents and the models that a key names."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from clew.serve.access import Authorized, Caller
from clew.serve.openai.refusals import NotStored, OpenAIRoute

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=OpenAIRoute)


@router.get("", operation_id="listModels")
async def list_models(caller: Authorized) -> Response:
    """List the agents and the models that the key names. A key without such lists may use others, too."""
    return JSONResponse({"object": "list", "data": _list(caller)})


@router.get("/{model:path}", operation_id="getModel")
async def get_model(caller: Authorized, model: str) -> Response:
    """Read an agent or a model that the key names."""
    for made in _list(caller):
        if made["id"] == model:
            return JSONResponse(made)
    raise NotStored(f"The model '{model[:200]}' does not exist or you do not have access to it.", param="model")


def _list(caller: Caller) -> list[dict[str, Any]]:
    agents = [(name, "clew") for name in caller.key.agents or ()]
    models = [(name, name.partition(":")[0]) for name in caller.key.models or () if not name.endswith(":*")]
    return [{"id": name, "object": "model", "created": 0, "owned_by": owner} for name, owner in (*agents, *models)]
