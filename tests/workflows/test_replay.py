"""Recorded histories replay with the current code and make the same threads."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from clew import Clew
from clew.contract.payloads import ConfigPayload
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import load_tools
from clew_activities.worker import SessionWorker, WorkerSettings, make_worker, make_workflow_sandbox
from clew_audit.replay import replay_run
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.tokens import load_encoding, load_encodings
from clew_workflows.host.agent_session import AgentSession
from tests.support.corpus import NEXT, list_corpora, read_corpus
from tests.support.scenarios import SCENARIOS, control, reply_as_scenario
from tests.support.stack import Stack

RUNS = [(version, name) for version in list_corpora() for name in read_corpus(version).threads]
"""The recorded workflow runs of each released version, and of the next one, by their names."""
NEXT_RUNS = [name for version, name in RUNS if version == NEXT]


@pytest.fixture(autouse=True, scope="module")
def encodings() -> None:
    """Load the vocabularies before the tests, as a worker does: loading takes longer than a workflow task may."""
    load_encodings()


async def replay(history: WorkflowHistory, session: type, runner: Any) -> None:
    replayer = Replayer(workflows=[session], data_converter=pydantic_data_converter, workflow_runner=runner)
    await replayer.replay_workflow(history)


def test_every_shape_is_recorded() -> None:
    """Each scenario has its history."""
    assert {history.workflow_id.partition(".")[0] for history in read_corpus(NEXT).histories} == set(SCENARIOS)


@pytest.mark.parametrize(("version", "name"), RUNS)
async def test_a_recorded_history_replays(version: str, name: str) -> None:
    """Every history of a released shape replays under today's code, in the worker's own sandbox."""
    await replay(read_corpus(version).find_history(name), AgentSession, make_workflow_sandbox())


@pytest.mark.parametrize("name", NEXT_RUNS)
async def test_a_recorded_history_has_the_counts_of_its_texts(name: str) -> None:
    """Each entry has the tokens that counting its text gives, wherever it was counted."""
    session = (await replay_run(read_corpus(NEXT).find_history(name))).session
    assert session
    encoding = load_encoding(session.state.settings.config.encoding)
    for entry in session.thread:
        body = replace(entry.body, tokens=None) if isinstance(entry.body, ConfigPayload) else entry.body
        assert body.count(encoding) == (entry.body, entry.tokens)


@pytest.mark.parametrize(("version", "name"), RUNS)
async def test_a_recorded_history_makes_the_thread_that_it_made(version: str, name: str) -> None:
    """Every entry, with its counts, recipes and policies, is the one that was committed when it was recorded."""
    corpus = read_corpus(version)
    session = (await replay_run(corpus.find_history(name))).session
    assert session
    assert compute_digest([entry.as_dict() for entry in session.thread]) == corpus.threads[name]


@pytest.mark.slow
async def test_a_thread_is_equal_after_replay(stack: Stack) -> None:
    """A worker that knows nothing but the history has the thread that the first worker had, to the byte."""
    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, queue)
    providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})

    store = Store.from_url("memory://")

    def worker(http: httpx.AsyncClient) -> SessionWorker:
        tools = load_tools(["tests.support.toolbox"])
        settings = WorkerSettings(task_queue=queue, providers=providers, tools=tools, store=store)
        return make_worker(clew.temporal, settings, http)

    async with make_http_client() as http:
        async with worker(http):
            model = stack.add_model(reply_as_scenario)
            session = await clew.open(f"test-{uuid.uuid4().hex}", model=model, tools=["add"])
            await control(session)
            before = [entry.as_dict() for entry in await session.entries()]
        async with worker(http):
            assert [entry.as_dict() for entry in await session.entries()] == before
            assert len(before) > 30


@workflow.defn(dynamic=True)
class Reordered(AgentSession):
    """A session that starts a timer before all else, which no recorded history has."""

    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)

    async def _serve(self) -> None:
        await workflow.sleep(timedelta(seconds=1))
        await super()._serve()


@pytest.mark.parametrize("name", NEXT_RUNS)
async def test_a_change_of_command_order_is_caught(name: str) -> None:
    """The same histories do not replay under code that asks for another thing first."""
    with pytest.raises(NondeterminismError):
        await replay(read_corpus(NEXT).find_history(name), Reordered, UnsandboxedWorkflowRunner())
