"""Drafts: what the entries of a session hold."""

from __future__ import annotations

from clew.contract import ModelOptions, SessionConfig
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.session import decisions
from tests.support.session_harness import SessionHarness


def test_a_reply_keeps_its_recipe() -> None:
    """The assistant's entry says what the model was shown, in terms of the thread, and whose call it answers."""
    session = SessionHarness()
    session.ask(context_policy=ContextPolicy(keep_last_turns=1), model_options=ModelOptions(temperature=0))
    session.reply("hi", thinking="hm", stop_reason="stop")
    entry = session.thread[2]
    recipe = entry.payload["recipe"]
    assert (recipe["context_ref"], recipe["basis_seq"], recipe["model"]) == ("default", 1, "openai:gpt-4o")
    assert recipe["context_policy"] == {"keep_last_turns": 1}
    assert (recipe["digest"], recipe["policy_hash"], recipe["input_tokens"], recipe["attempt"]) == ("d", "p", 7, 1)
    assert recipe["model_options"]["temperature"] == 0
    assert entry.payload["thinking"] == "hm"
    assert (entry.refs["call_id"], entry.refs["iteration"]) == ("call-1", 1)


def test_the_configuration_is_the_first_fact_and_complete() -> None:
    """Seq 0 holds all that shapes a context, defaults included, so that no later default can change it."""
    session = SessionHarness(
        system_prompt="Be brief.", model_options=ModelOptions(seed=3), limits={"max_cost_usd": 1}
    )
    config = session.thread[0]
    assert config.kind == "config"
    assert [tool["name"] for tool in config.payload["tools"]] == ["add", "look"]
    assert config.payload["model_options"] == {"seed": 3}
    assert config.payload["limits"].keys() == {"max_message_bytes", "max_tool_result_bytes", "max_cost_usd"}
    assert config.payload["context_policy"] == session.state.settings.policy.model_dump(mode="json")
    # Those that the session does not have are absent, and the usual priority and scope are not recorded.
    absent = {
        "agent",
        "pin",
        "fallbacks",
        "provider_tools",
        "external_tools",
        "priority",
        "approval_scope",
        "webhooks",
    }
    assert set(config.payload) == {*SessionConfig.model_fields, "tokens"} - absent
    assert session.state.phase == "idle"


def test_a_rejected_signal_is_a_fact_and_disturbs_nothing() -> None:
    """In every phase: what came is recorded, and what runs goes on."""
    session = SessionHarness()
    session.ask()
    before = session.state
    session.apply(decisions.reject(session.state, "s" * 500, "unknown signal", "what came"))
    assert session.state == before
    entry = session.thread[2]
    assert entry.kind == "input"
    assert entry.payload == {
        "event": "rejected",
        "kind": "s" * 200,
        "reason": "unknown signal",
        "content": "what came",
    }
    session.reply("fine")
    assert session.thread[3].payload["recipe"]["basis_seq"] == 1
