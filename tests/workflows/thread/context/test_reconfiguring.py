"""A thread under another configuration."""

from __future__ import annotations

from clew.contract import ContextPolicy
from clew_workflows.contract.messages import ToolSpec
from clew_workflows.thread.context.contexts import ModelSettings, build_context, reconfigure
from tests.support.threads import Writer, assistant_says, user_says


def test_contexts_have_the_other_prompt_tools_and_policy() -> None:
    """At every seq, also before a `config` entry of the thread; the thread itself does not change."""
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"), assistant_says("b"))
    writer.config()
    writer.talk(user_says("c"))
    before = build_context(writer.thread)
    spec: ToolSpec = {"name": "search", "description": "", "parameters": {"type": "object"}}
    policy = ContextPolicy(max_input_tokens=5000, keep_last_turns=1).complete()
    changed = reconfigure(writer.thread, ModelSettings("anthropic:claude", "new", [spec], policy))
    for seq in (1, changed.last_seq):
        context = build_context(changed, at_seq=seq)
        assert context.messages[0] == {"role": "system", "content": "new"}
        assert context.tool_spec == [spec]
        assert context.meta.policy_hash == policy.hash
    assert build_context(writer.thread) == before
    assert len(changed) == len(writer.thread)
