"""The preparing activity: it resolves a session's tools and model on its worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from clew import Agent, Tool, tool
from clew_activities.archive import Archive, Store, archived_sessions
from clew_activities.archive.archived_sessions import SearchAttributes
from clew_activities.model.model_table import find_prices
from clew_activities.model.prepare import PrepareActivities
from clew_activities.providers import load_providers
from clew_activities.tools.registry import make_registry
from clew_activities.tools.stored_results import read_result, view_blob
from clew_workflows import contract
from clew_workflows.contract.limits import MAX_TOOLS_BYTES
from clew_workflows.contract.messages import canonicalize
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import DescribeModel, ModelProfile, Prepare, Prepared, RolloverThresholds


@tool(timeout_seconds=5, retries=2)
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@tool
async def look() -> str:
    """Look around."""
    return "sky"


@tool(idempotent=False, requires_approval=True)
def pay() -> None: ...


@tool
def wordy() -> None: ...


@tool
def wordier() -> None: ...


for some in (wordy, wordier):
    some.spec["description"] = "x" * (MAX_TOOLS_BYTES // 2)


async def prepare(*tools: str, model: str = "local:tiny", own: Tool[..., Any] = add, **fields: Any) -> Prepared:
    return await ActivityEnvironment().run(make(own).prepare, Prepare(model=model, tools=tools, **fields))


async def describe(activities: PrepareActivities, model: str) -> ModelProfile:
    return await ActivityEnvironment().run(activities.describe_model, DescribeModel(model=model))


def make(own: Tool[..., Any] = add, agents: tuple[Agent, ...] = ()) -> PrepareActivities:
    providers = load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": "http://127.0.0.1:1"})
    tools_here = {tool.name: tool for tool in (add, look, pay, wordy, wordier, own)}
    archive = Archive(Store.from_url("memory://"), "default")
    return PrepareActivities(providers, make_registry(tools_here, agents), archive, RolloverThresholds())


async def test_tools_are_resolved_in_the_order_asked_for() -> None:
    """With their whole schema, their time, and as many attempts as their retries give."""
    answer = await prepare("look", "add")
    assert answer.problem is None
    assert [tool.spec for tool in answer.tools] == [look.spec, add.spec]
    assert [(tool.timeout_seconds, tool.max_attempts) for tool in answer.tools] == [(60, 1), (5, 3)]
    assert (await prepare()).tools == ()


async def test_tools_are_resolved_with_what_the_session_must_know_of_their_effects() -> None:
    """The answer says whether a call may run again, and whether it needs an approval."""
    (plain, careful) = (await prepare("add", "pay")).tools
    assert (plain.idempotent, plain.requires_approval) == (True, False)
    assert (careful.idempotent, careful.requires_approval) == (False, True)


async def test_what_is_resolved_survives_the_journey() -> None:
    """The answer is JSON that reads back as itself."""
    answer = await prepare("look", "add")
    assert Prepared.model_validate_json(answer.model_dump_json()) == answer


async def test_unknown_tools_are_named_with_the_remedy() -> None:
    """All that are unknown, up to ten, and what is known is resolved all the same."""
    answer = await prepare("fly", "add", "sw\nim", *[f"t{n}" for n in range(100)])
    assert [tool.spec["name"] for tool in answer.tools] == ["add"]
    assert answer.problem is not None
    assert answer.problem.type == "unknown_tool"
    assert r"'fly', 'sw\nim', 't0'" in answer.problem.message
    assert "CLEW_TOOLS" in answer.problem.message
    assert "its tools are: add, look, pay" in answer.problem.message
    assert answer.problem.message.endswith("`clew configure test --tool add`")
    assert len(answer.problem.message) < 1000
    assert answer.problem.retryable is False


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("openai:gpt-4o", "set OPENAI_API_KEY"),
        ("other:m", "CLEW_PROVIDER_OTHER_BASE_URL"),
        ("a-b:m", "CLEW_PROVIDERS"),
    ],
)
async def test_a_model_of_an_unknown_provider_is_told_with_the_remedy(model: str, remedy: str) -> None:
    """The tools are resolved, so that nothing but the model is in the way."""
    answer = await prepare("add", model=model)
    assert answer.problem is not None
    assert answer.problem.type == "unknown_model"
    assert remedy in answer.problem.message
    assert len(answer.tools) == 1


async def test_schemas_have_a_size() -> None:
    """Of all tools together: every page of a context has room for them."""
    assert (await prepare("wordy")).problem is None
    answer = await prepare("wordy", "wordier")
    assert answer.problem is not None
    assert answer.problem.type == "too_large"
    assert str(len(canonicalize(wordy.spec)) + len(canonicalize(wordier.spec))) in answer.problem.message
    assert answer.tools == ()


@pytest.mark.parametrize("fields", [{"execution": "execution-1", "after": ""}, {"archived": True}])
async def test_a_session_with_tools_and_an_archive_can_read_large_results(fields: dict[str, Any]) -> None:
    """Its model gets a tool for it, which needs no approval; it may also be named."""
    for names in (("add",), ("add", "read_result")):
        answer = await prepare(*names, **fields)
        assert answer.problem is None
        assert [tool.spec for tool in answer.tools] == [add.spec, read_result.spec]
        assert not answer.tools[1].requires_approval
    assert (await prepare(**fields)).tools == ()


async def test_a_session_whose_policy_clears_results_can_read_them_again() -> None:
    """Also one with no tools of its own, and before there is an archive."""
    assert read_result.name == contract.READ_RESULT
    assert [tool.spec for tool in (await prepare(clears=True)).tools] == [read_result.spec]
    assert [tool.spec for tool in (await prepare("add", clears=True)).tools] == [add.spec, read_result.spec]


async def test_without_an_archive_there_is_nothing_to_read() -> None:
    """Then the tool is as unknown as any other."""
    assert [tool.spec for tool in (await prepare("add")).tools] == [add.spec]
    problem = (await prepare("read_result")).problem
    assert problem is not None
    assert problem.type == "unknown_tool"


async def test_a_tool_of_the_workers_own_by_that_name_wins() -> None:
    """It is a session's only where the session names it."""

    @tool
    def read_result() -> str:
        """Mine."""
        return ""

    assert [tool.spec for tool in (await prepare("add", own=read_result, archived=True)).tools] == [add.spec]
    (answer,) = (await prepare("read_result", own=read_result, archived=True)).tools
    assert answer.spec == read_result.spec


@pytest.mark.parametrize(
    ("model", "window", "encoding"),
    [
        ("local:gpt-4", 8_192, "cl100k_base"),
        ("local:claude-opus-5-5", 1_000_000, "o200k_base"),
        ("local:tiny", 8_000, "o200k_base"),
    ],
)
async def test_the_answer_says_what_is_known_of_the_model(model: str, window: int, encoding: str) -> None:
    """The whole policy, so that no later default can show through it, the encoding, and the prices."""
    profile = (await prepare(model=model)).profile
    assert profile
    assert (profile.model, profile.encoding, profile.prices) == (model, encoding, find_prices(model))
    assert profile.policy.max_input_tokens == window
    assert profile.policy.model_fields_set == set(ContextPolicy.model_fields)
    assert await describe(make(), model) == profile


async def test_an_unknown_model_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its name and the window that it is given stand in the worker's log; known ones are not mentioned."""
    activities = make()
    for model in ("local:tiny", "local:gpt-4o", "nowhere:tiny", "local:tiny"):
        await ActivityEnvironment().run(activities.prepare, Prepare(model=model, tools=()))
    for model in ("local:tiny", "nowhere:tiny", "local:\nother"):
        await describe(activities, model)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        "local:tiny",
        "local:\nother",
    ]
    assert "'local:tiny' is not in the table of models: contexts are limited to 8000 tokens" in caplog.messages[0]
    assert "\n" not in caplog.messages[1]


SUPPORT = Agent("support", model="local:tiny", tools=[add, pay], context_policy=ContextPolicy(max_messages=3))
CLEARING = Agent(
    "clearing", model="local:tiny", context_policy=ContextPolicy(clear_tool_results=contract.ClearToolResults(keep=1))
)


async def prepare_agent(agent: str, **fields: Any) -> Prepared:
    activities = make(agents=(SUPPORT, CLEARING))
    return await ActivityEnvironment().run(activities.prepare, Prepare(agent=agent, **fields))


async def test_an_agent_is_resolved_with_its_model_and_tools() -> None:
    """And with its version; the session gets what the agent sets, and nothing of what it leaves out."""
    answer = await prepare_agent("support")
    registry = make_registry({}, [SUPPORT])
    assert answer.problem is None
    assert answer.agent == registry.agents["support"]
    assert [tool.spec["name"] for tool in answer.tools] == ["add", "pay"]
    assert answer.profile
    assert answer.profile.model == "local:tiny"
    assert answer.deployment
    again = Prepared.model_validate_json(answer.model_dump_json())
    assert again == answer
    assert again.agent
    assert again.agent.config.model_fields_set == {"model", "tools", "context_policy"}


async def test_what_callers_set_is_resolved_in_the_agents_place() -> None:
    """The model, the tools, and whether results are cleared."""
    answer = await prepare_agent("support", model="local:other", tools=("look",))
    assert answer.profile
    assert (answer.profile.model, [tool.spec["name"] for tool in answer.tools]) == ("local:other", ["look"])
    names = {
        clears: [tool.spec["name"] for tool in (await prepare_agent("clearing", clears=clears)).tools]
        for clears in (None, True, False)
    }
    assert names == {None: ["read_result"], True: ["read_result"], False: []}


async def test_an_agent_that_the_worker_does_not_have_is_a_problem() -> None:
    """It names the agents that there are. The worker still says which deployment it is of."""
    answer = await prepare_agent("suport")
    assert answer.problem
    assert answer.problem.type == "unknown_agent"
    assert "'suport', its agents are: support, clearing" in answer.problem.message
    assert (answer.agent, answer.profile, answer.tools) == (None, None, ())
    assert answer.deployment


async def test_sessions_with_media_get_the_tool_that_shows_them_again() -> None:
    """Those that have tools, and those whose policy clears media; the others have the tools that they had."""
    assert view_blob.name == contract.VIEW_BLOB
    drawing = Agent(
        "drawing", model="local:tiny", context_policy=ContextPolicy(clear_media=contract.ClearMedia(keep=1))
    )
    activities = make(agents=(SUPPORT, drawing))

    async def list_names(**fields: Any) -> list[str]:
        answer = await ActivityEnvironment().run(activities.prepare, Prepare(**fields))
        return [tool.spec["name"] for tool in answer.tools]

    assert await list_names(agent="support") == ["add", "pay"]
    assert await list_names(agent="support", views=True) == ["add", "pay", "view_blob"]
    assert await list_names(model="local:tiny", tools=(), views=True) == []
    assert await list_names(model="local:tiny", tools=(), clears_media=True) == ["view_blob"]
    assert await list_names(agent="drawing") == ["view_blob"]
    assert "views" not in Prepare(model="local:tiny").model_dump_json()


async def test_a_preparation_that_was_given_up_leaves_no_wrong_list_of_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server, which was slow at first, is asked again by the next preparation."""
    asked = asyncio.Event()

    async def find_registered(_client: object) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return ["ClewStatus"]

    monkeypatch.setattr(archived_sessions, "find_registered", find_registered)
    providers = load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": "http://127.0.0.1:1"})
    archive = Archive(Store.from_url("memory://"), "default")
    activities = PrepareActivities(
        providers, make_registry({}, ()), archive, RolloverThresholds(), search_attributes=SearchAttributes()
    )
    client: Any = SimpleNamespace(namespace="default")
    request = Prepare(model="local:tiny", execution="run-1", after="")
    preparing = asyncio.create_task(ActivityEnvironment(client).run(activities.prepare, request))
    await asked.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    prepared = await ActivityEnvironment(client).run(activities.prepare, request)
    assert prepared.search_attributes == ("ClewStatus",)
