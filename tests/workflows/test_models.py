"""A session keeps the profiles of models that its workers answered."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from temporalio.client import WorkflowHistory

from clew import Clew, ContextPolicy, RequestFailed
from clew.local import Reply, ToolCall
from clew_activities.model.model_table import OwnModel, OwnModels, OwnPrice, choose_policy, find_prices
from tests.support.encrypted import needs_plain
from tests.support.rolling import list_runs, make_id, run_rolling_worker
from tests.support.stack import Stack, make_client, run_deployment

OTHER = "scripted:gpt-4o"
"""A model that the table and the price list know."""

REPLAY = """
import asyncio, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("clew_activities", "genai_prices"):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Blocked())
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.host.agent_session import AgentSession

load_encodings()
replayer = Replayer(
    workflows=[AgentSession],
    data_converter=pydantic_data_converter,
    workflow_runner=UnsandboxedWorkflowRunner(),
)
asyncio.run(replayer.replay_workflow(WorkflowHistory.from_json("replayed", sys.stdin.read())))
"""


@pytest.fixture
def other(stack: Stack) -> str:
    """The model that the table knows, which answers here."""
    stack.scripts[OTHER.partition(":")[2]] = stack.scripts[stack.add_model("fine").partition(":")[2]]
    return OTHER


async def fetch_histories(clew: Clew, session_id: str) -> list[WorkflowHistory]:
    """The histories of a session's runs, the newest first."""
    handles = [clew.temporal.get_workflow_handle(session_id, run_id=run) for run in await list_runs(clew, session_id)]
    return [await handle.fetch_history() for handle in handles]


def replay_elsewhere(history: WorkflowHistory) -> subprocess.CompletedProcess[str]:
    """Replay a history in a process that has no worker's packages."""
    command = [sys.executable, "-c", REPLAY]
    return subprocess.run(command, input=history.to_json(), capture_output=True, text=True, check=False, timeout=60)


def count_scheduled(history: WorkflowHistory, activity: str) -> int:
    """How often an activity was scheduled."""
    types = (event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events)
    return sum(found == activity for found in types)


async def test_a_messages_own_model_is_asked_about_once(stack: Stack, other: str) -> None:
    """Under its policy it is called, and the session knows it in the next runs of its workflow too."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for turn in range(20):
            await session.ask(f"turn {turn}", model=other if turn % 4 == 0 else None)
        runs = await fetch_histories(clew, session.id)
        assert len(runs) > 1
        assert [count_scheduled(run, "describe_model") for run in runs] == [0] * (len(runs) - 1) + [1]
        recipes = [entry.payload["recipe"] for entry in await session.entries() if "recipe" in entry.payload]
        policies = {recipe["model"]: recipe.get("context_policy") for recipe in recipes}
        assert policies == {other: choose_policy(other).model_dump(mode="json"), (await session.status()).model: None}


@needs_plain
async def test_replays_need_no_table(stack: Stack, other: str) -> None:
    """A recorded session is replayed where there is neither a table of models nor a list of prices."""
    session = await stack.open(limits={"max_total_tokens": 10_000})
    await session.ask("hello", model=other)
    await session.configure(model=other)
    await session.ask("hello again")
    await session.ask("and again", model=stack.add_model("fine"))
    await session.close()
    (history,) = await fetch_histories(stack.clew, session.id)
    ran = await asyncio.to_thread(replay_elsewhere, history)
    assert ran.returncode == 0, ran.stderr


async def test_what_was_charged_is_in_the_thread(stack: Stack, other: str) -> None:
    """A call's recipe has its prices; a preview has the prices that a worker answered."""
    session = await stack.clew.open(make_id(), model=other)
    await session.ask("hello")
    (recipe,) = [entry.payload["recipe"] for entry in await session.entries() if "recipe" in entry.payload]
    (price,) = find_prices(other)
    assert recipe["prices"] == [price.model_dump(exclude_defaults=True)]
    usage = recipe["usage"]
    assert usage["cost_usd"] == pytest.approx(
        (usage["input_tokens"] * price.input + usage["output_tokens"] * price.output) / 1e6
    )
    meta = (await session.context(pending=["and now"])).meta
    assert meta.input_cost_usd == pytest.approx(meta.estimated_tokens * (meta.token_ratio or 1) * price.input / 1e6)
    unpriced = await stack.open()
    assert (await unpriced.context(pending=["hello"])).meta.input_cost_usd is None


async def test_a_model_without_a_price_is_not_called_under_a_limit_of_cost(stack: Stack, other: str) -> None:
    """Neither the session's model nor a message's own; one with a price is, until the limit is spent."""
    session = await stack.open(limits={"max_cost_usd": 1e-9})
    with pytest.raises(RequestFailed, match="has no price of scripted:"):
        await session.ask("hello")
    await session.ask("hello", model=other)
    with pytest.raises(RequestFailed, match="has cost"):
        await session.ask("hello", model=other)
    assert len(stack.list_requests((await session.status()).model)) == 0


async def test_a_model_of_ones_own_has_the_price_and_the_size_that_its_team_gives(stack: Stack) -> None:
    """It is called under a limit of cost, which ends it; a summary's cost and pieces are computed alike."""
    clew, model = make_client(stack), stack.add_model("fine")
    own = OwnModels({model: OwnModel(window=40_000)}, {"scripted:*": OwnPrice(input=1_000, output=5_000)})
    async with run_deployment(stack, clew, own_models=own):
        session = await clew.open(make_id(), model=model, limits={"max_cost_usd": 1e-3})
        assert await session.ask("hello") == "fine"
        status = await session.status()
        assert status.config["context_policy"]["max_input_tokens"] == 40_000
        usage = status.usage
        assert usage.cost_usd == pytest.approx((usage.input_tokens + usage.output_tokens * 5) / 1_000)
        with pytest.raises(RequestFailed, match="has cost"):
            await session.ask("hello")
        await session.configure(limits={"max_cost_usd": 100})
        await session.summarize(to_seq=2)
        assert ((await session.status()).usage.cost_usd or 0) > (usage.cost_usd or 0)


async def test_a_summary_is_written_in_pieces_that_its_model_takes(stack: Stack) -> None:
    """The pieces fit the window of the summary's model; without a known window they fit the policy's."""
    stack.scripts["gpt-4"] = stack.scripts[stack.add_model("in short").partition(":")[2]]
    for model, calls in (("scripted:gpt-4", 4), (stack.add_model("in short"), 1)):
        policy = ContextPolicy(max_input_tokens=60_000, keep_last_turns=0, summarization_model=model)
        session = await stack.open(context_policy=policy)
        for _ in range(4):
            await session.ask("word " * 4_000)
        await session.summarize()
        assert len(stack.list_requests(model)) == calls


async def test_every_billed_attempt_of_a_call_is_counted(stack: Stack) -> None:
    """Two empty replies cost as much as the third, which has a text: cost limits count all of them."""
    replies = iter([Reply(" "), Reply(" "), Reply("fine")])
    session = await stack.open(lambda _body: next(replies))
    request = await session.message("hello")
    outcome = await request.result()
    (entry,) = [entry for entry in await session.entries() if "recipe" in entry.payload]
    recipe = entry.payload["recipe"]
    one = recipe["usage"]["input_tokens"]
    assert (recipe["attempt"], recipe["earlier_usage"]["input_tokens"]) == (3, 2 * one)
    assert (outcome.usage.input_tokens, outcome.usage.model_calls) == (3 * one, 1)
    assert (await session.status()).usage == outcome.usage


async def test_the_billed_attempts_of_a_call_that_fails_are_counted(stack: Stack) -> None:
    session = await stack.open(lambda _body: Reply(" "))
    request = await session.message("hello")
    outcome = await request.result()
    assert (outcome.status, outcome.termination_reason) == ("failed", "empty_reply")
    (body, *_) = stack.list_requests((await session.status()).model)
    assert outcome.usage.input_tokens == 3 * (len(json.dumps(body["messages"])) // 4)


async def test_a_template_that_refuses_its_messages_fails_the_request_at_once(stack: Stack) -> None:
    """llama.cpp answers 500 then; the same request would fail each time."""
    words = "Error rendering prompt with jinja template: Conversation roles must alternate user/assistant"
    session = await stack.open(lambda _body: Reply.error(500, words))
    with pytest.raises(RequestFailed, match="must alternate") as failed:
        await session.ask("hello")
    assert failed.value.outcome.termination_reason == "bad_request"
    assert len(stack.list_requests((await session.status()).model)) == 1


async def test_tool_calls_that_the_limit_cuts_are_explained_and_come_to_an_end(stack: Stack) -> None:
    cut = Reply(tool_calls=[ToolCall("add", '{"a": 1, "b": ')], finish_reason="length")
    session = await stack.open(lambda _body: cut, tools=["add"], max_iterations=8)
    with pytest.raises(RequestFailed) as failed:
        await session.ask("add")
    assert failed.value.outcome.termination_reason == "max_output_tokens"
    bodies = stack.list_requests((await session.status()).model)
    assert len(bodies) == 3
    assert "reached its limit" in bodies[1]["messages"][-1]["content"]
