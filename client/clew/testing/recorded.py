"""Recorded sessions under other code: `replay` with the code to be deployed, `evaluate` under another agent."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseError
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.worker import Plugin, Replayer, WorkflowRunner

from clew import Clew, Entry, Session
from clew.agents import Agent
from clew.local import scripted_model
from clew.operators import read_export
from clew.testing.scripts import Script, Scripts, make_providers
from clew.tools import ToolDefinition
from clew_activities.providers import load_providers
from clew_activities.tools.registry import collect_tools
from clew_activities.worker import make_workflow_sandbox
from clew_activities.worker.environment import WORKFLOWS
from clew_audit.evaluation import CALLS_AT_ONCE, Evaluation, evaluate_thread
from clew_audit.histories import SavedHistories
from clew_audit.json_lines import FileDamaged
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.encryption import encrypt_payloads, read_encryption
from clew_workflows.host.payload_converter import make_tolerant


class ReplayFailed(AssertionError):
    """Workflow runs cannot be replayed by this code: open ones would not continue.

    Attributes:
        problems: The first difference of each such run, by its workflow's id and its run's id.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = problems
        lines = [f"{name}: {problem}" for name, problem in problems.items()]
        super().__init__("\n".join([f"{len(problems)} workflow runs cannot be replayed:", *lines]))


async def replay(
    *sources: WorkflowHistory | str | Path,
    client: Clew | Client | None = None,
    query: str | None = None,
    limit: int | None = None,
    workflows: Sequence[type] = (),
    data_converter: DataConverter = pydantic_data_converter,
    workflow_runner: WorkflowRunner | None = None,
    plugins: Sequence[Plugin] = (),
) -> int:
    """Replay workflow runs with the code of this process, and return their number.

    Sessions and Clew's services are replayed with the installed version of Clew.

    Args:
        sources: Histories, and files: those of `clew audit --save` and of `temporal workflow show --output json`. A
            folder stands for all files in it.
        client: Reads the histories of the workflows that `query` lists.
        query: A list filter of Temporal's, such as `WorkflowType = 'AgentSession' AND ExecutionStatus = 'Running'`.
        limit: The most workflows that are read; None: all that the query lists.
        workflows: A team's own workflow classes.
        data_converter: The data converter of the workers. Without a codec it gets the keys of the environment.
        workflow_runner: The workers' runner of workflow code; None: the sandbox of Clew's worker.
        plugins: The plugins of the workers.

    Raises:
        FileDamaged: A file holds no histories.
        NewerVersion: A newer version of Clew has written a file.
        ReplayFailed: At least one run cannot be replayed.
        ValueError: There is nothing to replay, or `query` has no `client`.
    """
    if query is not None and client is None:
        raise ValueError("a query needs a client")
    load_encodings()
    data_converter = encrypt_payloads(data_converter, read_encryption())
    replayer = Replayer(
        workflows=[*WORKFLOWS, *workflows],
        data_converter=make_tolerant(data_converter),
        workflow_runner=workflow_runner or make_workflow_sandbox(),
        plugins=plugins,
    )
    count, problems = 0, dict[str, str]()
    async for history in _read_histories(sources, client, query, limit, data_converter):
        count += 1
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure:
            problems[f"{history.workflow_id} ({history.run_id})"] = str(result.replay_failure)
    if problems:
        raise ReplayFailed(problems)
    if not count:
        raise ValueError("there is no workflow run to replay")
    return count


async def _read_histories(
    sources: Sequence[WorkflowHistory | str | Path],
    client: Clew | Client | None,
    query: str | None,
    limit: int | None,
    converter: DataConverter,
) -> AsyncIterator[WorkflowHistory]:
    for source in sources:
        if isinstance(source, WorkflowHistory):
            yield source
        else:
            for path in await asyncio.to_thread(_list_files, Path(source)):
                async for history in _read_file(path, converter):
                    yield history
    if query is not None and client is not None:
        temporal = client.temporal if isinstance(client, Clew) else client
        async for history in temporal.list_workflows(query, limit=limit).map_histories():
            yield history


def _list_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


async def _read_file(path: Path, converter: DataConverter) -> AsyncIterator[WorkflowHistory]:
    """Read the histories of a file, in one of the two formats."""
    data = await asyncio.to_thread(path.read_bytes)
    try:
        saved = SavedHistories(io.BytesIO(data), converter)
    except FileDamaged:
        saved = None
    if saved:
        async for run in saved.read_runs():
            if run.history:
                yield run.history
        return
    try:
        history: Any = WorkflowHistory.from_json(path.stem, data.decode())
    except (ValueError, ParseError) as error:
        raise FileDamaged(f"{path} holds no event history: {str(error)[:300]}") from None
    yield history


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
    entries = await _read_entries(source)
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


async def _read_entries(source: Session | Iterable[Entry] | str | Path) -> list[Entry]:
    match source:
        case Session():
            return await source.entries()  # noqa: ASYNC240 - a session, not a path
        case str() | Path():
            return await asyncio.to_thread(_read_export, source)
        case _:
            return list(source)


def _read_export(file: str | Path) -> list[Entry]:
    with Path(file).open("rb") as source:
        return read_export(source, read_encryption().sealer)
