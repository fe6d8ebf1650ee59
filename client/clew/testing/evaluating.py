"""Ask a recorded thread again, under another agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from clew import Entry, Session
from clew.agents import Agent
from clew.local import scripted_model
from clew.operators import read_export
from clew.testing.scripts import Script, Scripts, make_providers
from clew.tools import ToolDefinition
from clew_activities.providers import load_providers
from clew_activities.tools.registry import collect_tools
from clew_audit.evaluation import CALLS_AT_ONCE, Evaluation, evaluate_thread
from clew_workflows.encryption import read_encryption


async def evaluate(
    source: Session | Iterable[Entry] | str | Path,
    agent: Agent,
    *,
    script: Script | None = None,
    tools: Iterable[ToolDefinition] = (),
    environ: Mapping[str, str] | None = None,
    calls_at_once: int = CALLS_AT_ONCE,
) -> Evaluation:
    """Ask every model call of a session again under an agent, and compare each reply with the recorded one.

    Each call gets the context that it had, but with the agent's system prompt, tools, policy and model. No tool is
    called, and the session does not change: later calls see the recorded replies and results.

    Args:
        source: A session, all entries of one, or a file that `clew export` has written.
        agent: The agent. What callers have set over a recorded agent's configuration is not kept.
        script: The replies of a scripted model, which is asked instead of the agent's. A list is for one call at a
            time.
        tools: The tools that the agent names by a string. Absent ones are those that the session recorded.
        environ: The variables of the model providers, as a worker has them; None: those of this process.
        calls_at_once: Model calls that run at the same time.

    Raises:
        FileDamaged: The file is damaged or incomplete.
        InvalidInput: The agent names a tool that is neither in `tools` nor in the session, or there is no provider of
            its model.
        InvalidTokenBudget: The agent's policy leaves no budget.
    """
    entries = await _read(source)
    known = collect_tools(tools)
    async with AsyncExitStack() as running:
        if script is None:
            providers = load_providers(os.environ if environ is None else environ)
        else:
            scripts = Scripts()
            agent = replace(agent, model=scripts.add_model(None, script))
            served = await running.enter_async_context(scripted_model(scripts.answer))
            providers = make_providers(served)
            calls_at_once = 1 if isinstance(script, (list, tuple)) else calls_at_once
        return await evaluate_thread(entries, agent, providers, tools=known, calls_at_once=calls_at_once)


async def _read(source: Session | Iterable[Entry] | str | Path) -> list[Entry]:
    match source:
        case Session():
            return await source.entries()  # noqa: ASYNC240 - a session, not a path
        case str() | Path():
            return await asyncio.to_thread(_read_file, source)
        case _:
            return list(source)


def _read_file(file: str | Path) -> list[Entry]:
    with Path(file).open("rb") as source:
        return read_export(source, read_encryption().sealer)
