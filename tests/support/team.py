"""A team's own workflow that calls sessions. Its sandbox imports this module, with nothing but what it needs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from temporalio import workflow

from clew import workflow as sessions
from clew.errors import Idle, RequestFailed


class Verdict(BaseModel):
    """An answer with a form."""

    refund: bool


@workflow.defn
class Support:
    """A team's own workflow. It imports `clew.workflow` inside its sandbox, like any other module."""

    @workflow.run
    async def run(self, call: str, session_id: str, options: dict[str, Any]) -> Any:
        if call == "ask":
            return await sessions.ask(session_id, "Hello?", **options)
        if call == "verdict":
            return (await sessions.ask(session_id, "Refund?", answer=Verdict, **options)).refund
        if call == "message":
            return (await sessions.message(session_id, "Hello?", **options)).status
        if call == "open":
            return await sessions.open(session_id, **options)
        if call == "fork":
            return await sessions.fork(session_id, **options)
        if call == "catch":
            try:
                await sessions.steer(session_id, "Faster!", **options)
            except Idle as refusal:
                return f"{refusal.type}: caught"
        if call == "recover":
            try:
                await sessions.ask(session_id, "Hello?", **options)
            except RequestFailed as error:
                return error.outcome.error.type if error.outcome.error else None
        return None
