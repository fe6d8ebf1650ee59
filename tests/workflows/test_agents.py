"""Agents on a real server: sessions name them, and a new deployment reaches the sessions that are open."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from clew import Agent, ContextPolicy, Session, tool
from clew.contract.payloads import AgentVersion
from clew.errors import InvalidInput, RequestFailed, TokenMismatch
from clew_activities.tools.registry import make_registry
from tests.support.rolling import make_id
from tests.support.stack import Stack, make_client, run_deployment


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


@tool(name="look")
def look_far(where: str, far: bool = False) -> str:
    """Look somewhere, also far away."""
    return f"nothing {where} {far}"


def make_agent(model: str, prompt: str, **fields: Any) -> Agent:
    return Agent("support", model=model, system_prompt=prompt, **fields)


def list_prompts(stack: Stack, model: str) -> list[str]:
    """List the system prompts that a model has received."""
    return [body["messages"][0]["content"] for body in stack.list_requests(model)]


def list_descriptions(body: dict[str, Any]) -> list[str]:
    """List the descriptions of the tools in a request body."""
    return [tool["function"]["description"] for tool in body.get("tools", ()) if tool["function"]["name"] == "look"]


async def count_activities(session: Session) -> Counter[str]:
    history = await session._handle.workflow.fetch_history()
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    )


async def read_versions(session: Session) -> list[str]:
    """Read the labels of the agent's versions from the `config` entries."""
    return [entry.payload["agent"]["label"] for entry in await session.entries(kind="config")]


@pytest.mark.slow
async def test_a_new_deployment_reaches_open_sessions_with_their_next_request(stack: Stack) -> None:
    """The next run has the new prompt and schemas, and the thread says what has changed. A pinned session keeps its
    version until `configure` names the agent; a session without an agent gets the new schemas of its tools."""
    clew, model = make_client(stack), stack.add_model("fine")
    plain_model, pinned_model = stack.add_model("fine"), stack.add_model("fine")
    first = make_agent(model, "one", tools=[look], version="1")
    second = make_agent(model, "two", tools=[look_far], version="2", max_iterations=7)
    async with run_deployment(stack, clew, first):
        following = await clew.open(make_id(), agent="support", metadata={"customer": "4711"})
        pinned = await clew.open(make_id(), agent="support", model=pinned_model, pin=True)
        plain = await clew.open(make_id(), model=plain_model, tools=["look"])
        assert await asyncio.gather(*(session.ask("hello") for session in (following, pinned, plain))) == ["fine"] * 3
        status = await following.status()
        assert (status.model, status.config["system_prompt"], status.metadata) == (model, "one", {"customer": "4711"})
        assert status.agent == AgentVersion(name="support", label="1", version=make_version(first))
        assert await following.ask("again") == "fine"
        assert await count_activities(following) == {"prepare": 1, "call_model": 2}
    async with run_deployment(stack, clew, second):
        for session in (following, pinned, plain):
            await session.ask("hello")
            await session.ask("again")
        assert list_prompts(stack, model) == ["one", "one", "two", "two"]
        # One preparation and one call that no model got.
        assert await count_activities(following) == {"prepare": 2, "call_model": 5}
        assert [list_descriptions(body) for body in stack.list_requests(model)][1:3] == [
            ["Look somewhere."],
            ["Look somewhere, also far away."],
        ]
        _, config = await following.entries(kind="config")
        assert config.payload["agent"] == {"name": "support", "label": "2", "version": make_version(second)}
        assert config.payload["changes"] == ["agent", "system_prompt", "tools", "max_iterations"]
        assert list_prompts(stack, pinned_model) == ["one"] * 3
        assert await count_activities(pinned) == {"prepare": 1, "call_model": 3}
        assert [list_descriptions(body) for body in stack.list_requests(plain_model)] == [
            ["Look somewhere."],
            *[["Look somewhere, also far away."]] * 2,
        ]
        assert [entry.payload.get("changes") for entry in await plain.entries(kind="config")] == [None, ["tools"]]

        await pinned.configure(agent="support")
        await pinned.ask("and now?")
        assert list_prompts(stack, pinned_model) == ["one"] * 3 + ["two"]
        assert await read_versions(pinned) == ["1", "2"]


def make_version(agent: Agent) -> str:
    return make_registry({}, [agent]).agents["support"].version


@pytest.mark.slow
async def test_a_pinned_session_keeps_its_version_while_it_hibernates(stack: Stack) -> None:
    """Waking prepares anew: agent and schemas stay; only tools that `configure` names are new. Others follow."""
    clew = make_client(stack)
    models = [stack.add_model("fine") for _ in range(2)]
    async with run_deployment(stack, clew, make_agent(models[0], "one", tools=[look], version="1")):
        sessions = [
            await clew.open(make_id(), agent="support", model=model, pin=pin)
            for model, pin in zip(models, (True, False), strict=True)
        ]
        for session in sessions:
            await session.ask("hello")
            await session.hibernate()
    async with run_deployment(stack, clew, make_agent(models[0], "two", tools=[look_far], version="2")):
        pinned, following = [await clew.open(session.id, agent="support") for session in sessions]
        assert (pinned.ignored, following.ignored) == ({}, {})
        await asyncio.gather(pinned.ask("again"), following.ask("again"))
        assert [list_prompts(stack, model) for model in models] == [["one", "one"], ["one", "two"]]
        await pinned.configure(tools=["look"])
        await pinned.ask("with the new schema")
        last = stack.list_requests(models[0])[-1]
        assert (last["messages"][0]["content"], list_descriptions(last)) == (
            "one",
            ["Look somewhere, also far away."],
        )


@pytest.mark.slow
async def test_workers_of_two_deployments_serve_one_session(stack: Stack) -> None:
    """While one deployment replaces another every request is served, with at most one new preparation each."""
    clew, model = make_client(stack), stack.add_model("fine")
    first, second = (make_agent(model, prompt, version=prompt) for prompt in ("one", "two"))
    async with run_deployment(stack, clew, first), run_deployment(stack, clew, second):
        session = await clew.open(make_id(), agent="support")
        for _ in range(12):
            assert await session.ask("hello") == "fine"
        counts = await count_activities(session)
        assert counts["prepare"] <= 13
        assert counts["call_model"] <= 24
    assert len(list_prompts(stack, model)) == 12


@pytest.mark.slow
async def test_an_agent_that_workers_do_not_have_fails_requests_until_they_have_it(stack: Stack) -> None:
    """`unknown_agent`, at the start of a session and later. The session keeps what it has."""
    clew, model = make_client(stack), stack.add_model("fine")
    agent = make_agent(model, "one", version="1")
    async with run_deployment(stack, clew):
        new = await clew.open(make_id(), agent="support")
        assert await fail_request(new) == "unknown_agent"
        status = await new.status()
        assert (status.agent, status.model, status.config["agent"]) == (None, "", "support")
    async with run_deployment(stack, clew, agent):
        old = await clew.open(make_id(), agent="support")
        assert (await new.ask("hello"), await old.ask("hello")) == ("fine", "fine")
    async with run_deployment(stack, clew):
        assert (await fail_request(new), await fail_request(old)) == ("unknown_agent", "unknown_agent")
        assert (await old.status()).model == model
    async with run_deployment(stack, clew, agent):
        assert (await new.ask("hello"), await old.ask("hello")) == ("fine", "fine")
        assert await read_versions(old) == ["1"]
        first, second = await new.entries(kind="config")
        assert (first.payload.get("agent"), first.payload["model"]) == (None, "")
        assert second.payload["changes"] == ["agent", "model", "system_prompt", "context_policy"]


async def test_an_idle_time_of_a_new_version_is_in_force_at_once(stack: Stack) -> None:
    """The session hibernates by itself, and continues under the agent."""
    clew, model = make_client(stack), stack.add_model("fine")
    async with run_deployment(stack, clew, make_agent(model, "one")):
        session = await clew.open(make_id(), agent="support")
        await session.ask("hello")
    async with run_deployment(stack, clew, make_agent(model, "two", idle_timeout_seconds=1)):
        await session.ask("hello")
        await session._handle.wait_for_end()
        again = await clew.open(session.id)
        assert await again.ask("hello") == "fine"
        assert list_prompts(stack, model) == ["one", "two", "two"]


async def fail_request(session: Session) -> str:
    with pytest.raises(RequestFailed) as failed:
        await session.ask("hello")
    assert failed.value.outcome.error
    return failed.value.outcome.error.type


async def test_what_callers_set_wins_over_the_agent(stack: Stack) -> None:
    """Field by field, and field by field within the policy, the options, the limits and the metadata."""
    clew, model = make_client(stack), stack.add_model("fine")
    agent = make_agent(
        model,
        "one",
        tools=[look],
        context_policy=ContextPolicy(keep_last_turns=5, max_messages=50),
        model_options={"temperature": 0.5, "seed": 1},
        limits={"max_total_tokens": 10_000},
        metadata={"team": "support"},
    )
    async with run_deployment(stack, clew, agent):
        session = await clew.open(
            make_id(),
            agent="support",
            context_policy=ContextPolicy(max_messages=9),
            model_options={"seed": 2},
            metadata={"customer": "4711"},
        )
        await session.configure(model_options={"temperature": None, "stop": ["."]}, on_busy="queue")
        await session.ask("hello")
        config = (await session.status()).config
        assert config["model_options"] == {"seed": 2, "stop": ["."]}
        assert (config["context_policy"]["keep_last_turns"], config["context_policy"]["max_messages"]) == (5, 9)
        assert config["metadata"] == {"team": "support", "customer": "4711"}
        assert (config["limits"]["max_total_tokens"], config["tools"]) == (10_000, ["look"])


@pytest.mark.slow
async def test_what_does_not_go_with_the_agent_fails_requests_with_its_reason(stack: Stack) -> None:
    """At the start no worker has resolved the agent yet. A change that repairs it is accepted."""
    clew, model = make_client(stack), stack.add_model("fine")
    async with run_deployment(stack, clew, make_agent(model, "one", tools=[look])):
        narrow = await clew.open(
            make_id(), agent="support", context_policy=ContextPolicy(reserve_output_tokens=50_000)
        )
        guarded = await clew.open(make_id(), agent="support", require_approval=["lok"])
        assert await fail_request(narrow) == "invalid_token_budget"
        assert await fail_request(guarded) == "unknown_tool"
        await narrow.configure(context_policy=ContextPolicy(reserve_output_tokens=100))
        await guarded.configure(require_approval=["look"])
        assert (await narrow.ask("hello"), await guarded.ask("hello")) == ("fine", "fine")


async def test_a_session_that_exists_says_what_it_ignores(stack: Stack, caplog: pytest.LogCaptureFixture) -> None:
    """Open, hibernating, and where the call names neither an agent nor a model; with what is in force instead."""
    clew, model = make_client(stack), stack.add_model("fine")
    async with run_deployment(stack, clew, make_agent(model, "one", tools=[look])):
        session = await clew.open(make_id(), agent="support", on_busy="queue")
        assert session.ignored == {}
        again: dict[str, Any] = {"agent": "support", "on_busy": "queue", "tools": ["look"]}
        assert (await clew.open(session.id, **again)).ignored == {}
        with caplog.at_level(logging.WARNING, logger="clew"):
            other = await clew.open(session.id, agent="billing", system_prompt="two", on_busy="queue")
        assert other.ignored == {"agent": "support", "system_prompt": "one"}
        assert "agent, system_prompt" in caplog.text
        assert (await clew.open(session.id, model_options={"seed": 1})).ignored == {"model_options": {}}
        await session.hibernate()
        assert (await clew.open(session.id, agent="support", on_busy="steer")).ignored == {"on_busy": "queue"}
        with pytest.raises(InvalidInput):
            await clew.open(session.id, agent="not a name")


@pytest.mark.slow
async def test_forks_and_checkpoints_have_the_agent(stack: Stack) -> None:
    """A fork at an entry before a new version follows the workers, and a pinned one keeps the version at that entry.
    A restored session follows them, too, unless it is pinned or a tool has changed."""
    clew, model = make_client(stack), stack.add_model("fine")
    pinned_model = stack.add_model("fine")
    async with run_deployment(stack, clew, make_agent(model, "one", version="1")):
        session = await clew.open(make_id(), agent="support")
        pinned = await clew.open(make_id(), agent="support", model=pinned_model, pin=True, metadata={"a": "b"})
        for each in (session, pinned):
            await each.ask("hello")
        tokens = [await each.checkpoint() for each in (session, pinned)]
        at_seq = (await session.status()).rev - 1
    async with run_deployment(stack, clew, make_agent(model, "two", version="2")):
        await session.ask("again")
        await pinned.configure(agent="support")
        forks = await session.fork(at_seq), await pinned.fork(at_seq)
        for fork in forks:
            await fork.ask("and here?")
        assert list_prompts(stack, model)[-1] == "two"
        assert await read_versions(forks[0]) == ["1", "2"]
        # The fork does not share the `configure`, and is pinned as its parent was.
        assert list_prompts(stack, pinned_model) == ["one", "one"]
        status = await forks[1].status()
        assert status.agent is not None
        assert status.agent.label == "1"
        assert (status.config["pin"], status.metadata) == (True, {"a": "b"})
        restored = await clew.restore(tokens[0])
        await restored.ask("and you?")
        assert list_prompts(stack, model)[-1] == "two"
        assert (await restored.status()).config["agent"] == "support"
        with pytest.raises(TokenMismatch):
            await clew.restore(tokens[1])
    async with run_deployment(stack, clew):
        with pytest.raises(TokenMismatch, match="no agent 'support'"):
            await clew.restore(tokens[0])
