"""What holds of every context, over generated histories and policies."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clew.errors import ContextOverflow
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.blocks import count_truncation_marker
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, project
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import LANES, PROVIDERS, Step, conversations, histories, policies, write
from tests.support.reference import Expected, build_expected, canonical_json, count_tokens
from tests.support.threads import CALCULATOR, OTHER_PAYLOADS, assert_valid, rebuild, user_says

NO_KINDS_LEFT_OUT = ("message", "tool_call", "tool_result", "summary")


VIEWER: ToolSpec = {"name": "view_blob", "description": "", "parameters": {}}


@st.composite
def inputs(draw: st.DrawFn, steps: st.SearchStrategy[list[Step]] = histories) -> ProjectionInput:
    """Everything that a context may depend on, over a history."""
    thread = write(draw(steps))
    at_seq = draw(st.none() | st.none() | st.integers(0, thread.last_seq))
    return ProjectionInput(
        thread,
        draw(policies),
        pending=draw(st.sampled_from(([], [user_says("pending")]))),
        system=draw(st.sampled_from((None, "You are terse."))),
        tools=draw(st.sampled_from(([], [CALCULATOR], [CALCULATOR, VIEWER]))),
        context_ref=draw(st.sampled_from((DEFAULT_LANE,) * 4 + LANES)),
        at_seq=at_seq,
        provider=draw(st.sampled_from(PROVIDERS)),
        encoding="heuristic",
        request_must_fit=draw(st.sampled_from((True, True, False))),
    )


def projected(some: ProjectionInput) -> Projection:
    """The context, of those inputs that have one."""
    try:
        return project(some)
    except ContextOverflow:
        assume(False)
        raise


def outcome(some: ProjectionInput) -> str:
    """What projecting comes to, to the byte: a context, or the error."""
    try:
        made = project(some)
    except ContextOverflow as error:
        return str(error)
    return json.dumps([made.messages, made.tool_spec, made.meta.as_dict()], ensure_ascii=False)


def expected(some: ProjectionInput) -> Expected | str:
    """What the reference comes to."""
    try:
        return build_expected(some)
    except ContextOverflow as error:
        return str(error)


@given(inputs())
@examples(200)
def test_agrees_with_the_naive_reference(some: ProjectionInput) -> None:
    """The context and its meta equal those of the naive reference, overflow included."""
    assume(some.policy.window == "sliding")
    awaited = expected(some)
    if isinstance(awaited, str):
        assert outcome(some) == awaited
        return
    made = project(some)
    assert made.messages == awaited.messages
    assert made.meta.model_dump(include=set(awaited.meta)) == awaited.meta


@given(inputs())
def test_is_deterministic(some: ProjectionInput) -> None:
    """The same input gives the same bytes, also from a thread that was read from JSON."""
    first = outcome(some)
    assert outcome(some) == first
    assert outcome(replace(some, thread=rebuild(some.thread))) == first


@given(inputs(conversations) | inputs())
@examples(200)
def test_what_was_shown_before_changes_nothing(some: ProjectionInput) -> None:
    """A thread that was projected at every seq while it grew gives the same context as one that was not."""
    grown = Thread()
    for entry in some.thread:
        grown.append(entry)
        outcome(replace(some, thread=grown, at_seq=None))
    for seq in range(grown.rev):
        outcome(replace(some, thread=grown, at_seq=seq))
    for provider in (some.provider, *PROVIDERS):
        shown = replace(some, thread=grown, provider=provider)
        assert outcome(shown) == outcome(replace(shown, thread=rebuild(some.thread)))


@given(inputs())
def test_changes_nothing(some: ProjectionInput) -> None:
    """Projecting leaves the thread as it was."""
    before = json.dumps([entry.as_dict() for entry in some.thread])
    outcome(some)
    assert json.dumps([entry.as_dict() for entry in some.thread]) == before


@given(inputs())
@examples(150)
def test_is_valid_for_every_provider(some: ProjectionInput) -> None:
    """No tool group is ever split, no result is ever an orphan, no call is left without a result."""
    assert_valid(projected(some).messages)


@pytest.mark.parametrize("name", ["heuristic", "o200k_base"])
@given(
    steps=histories, policy=policies, tools=st.sampled_from(([], [CALCULATOR])), provider=st.sampled_from(PROVIDERS)
)
def test_is_never_over_budget(
    name: str, steps: list[Step], policy: ContextPolicy, tools: list[object], provider: str | None
) -> None:
    """Messages and tool schemas, counted anew, are within the estimate, and the estimate within the budget."""
    some = ProjectionInput(
        write(steps, name),
        policy.model_copy(update={"token_estimator": "exact"}),
        system="You are terse.",
        tools=[CALCULATOR] if tools else [],
        provider=provider,
        encoding=name,
    )
    made = projected(some)
    by = load_encoding(name)
    schemas = sum(by.framing + by.count(canonical_json(tool)) for tool in made.tool_spec)
    counted = sum(count_tokens(message, by) for message in made.messages) + schemas
    assert counted <= made.meta.estimated_tokens <= policy.max_input_tokens - policy.reserve_output_tokens


@given(inputs())
def test_the_cap_on_messages_is_hard(some: ProjectionInput) -> None:
    """`max_messages` bounds the history, repaired results included; prompt, summary and pending come on top.

    The user's messages of the newest run, the newest results and pinned groups are kept beyond it.
    """
    made = projected(some)
    besides = bool(some.system) + made.meta.summary_used + len(some.pending)
    largest_group = max((1 + len(message.get("tool_calls", [])) for message in made.messages), default=0)
    pinned = sum(len(block.messages) for block in made.blocks if block.pinned)
    if some.policy.max_messages:
        required = len(list_newest_user_messages(some)) + largest_group + pinned
        assert len(made.messages) - besides <= max(some.policy.max_messages, required)


def conversation_shown(some: ProjectionInput) -> tuple[list[Entry], list[Entry]]:
    """The messages of a plain conversation that are shown, and those that are not; a group counts by its first."""
    messages = projected(some).messages
    lane = [entry for entry in some.thread if entry.kind == "ai_message" and entry.lane == some.context_ref]
    upto = some.thread.last_seq if some.at_seq is None else some.at_seq
    heads = [entry for entry in lane if entry.seq <= upto and entry.payload["role"] != "tool"]
    ends = {get_end(message) for message in messages}
    shown = [entry for entry in heads if get_end(entry.message) in ends]
    return shown, [entry for entry in heads if entry not in shown]


def get_end(message: Message) -> str:
    """The last text of a message, which has its seq, and which clearing media leaves."""
    return get_text(message["content"] if isinstance(message["content"], str) else message["content"][-1:])


def list_newest_user_messages(some: ProjectionInput) -> list[Entry]:
    """The user's messages of the lane's newest run."""
    upto = some.thread.last_seq if some.at_seq is None else some.at_seq
    user_messages = [
        e for e in some.thread.slice(0, upto) if e.lane == some.context_ref and e.payload.get("role") == "user"
    ]
    runs = [entry.refs.get("run_id") for entry in user_messages]
    own = len(user_messages) - 1
    while own > 0 and runs[own] and runs[own] == runs[own - 1]:
        own -= 1
    return user_messages[max(own, 0) :]


def current_matter(some: ProjectionInput) -> list[list[Entry]]:
    """The blocks that a context must hold: the user's messages of the newest run, and the newest tool results."""
    lane = some.thread.get_lane(some.context_ref)
    upto = some.thread.last_seq if some.at_seq is None else some.at_seq
    groups = [group.entries for group in (lane.groups if lane else []) if group.start <= upto]
    return [*groups[-1:], *([entry] for entry in list_newest_user_messages(some))]


@st.composite
def plain_inputs(draw: st.DrawFn) -> ProjectionInput:
    """Inputs with nothing but conversation in the thread, and every kind included."""
    some = draw(inputs(conversations))
    policy = some.policy.model_copy(update={"include_kinds": NO_KINDS_LEFT_OUT})
    return replace(some, policy=policy, request_must_fit=True)


@given(plain_inputs())
def test_all_that_the_current_runs_user_said_is_always_in(some: ProjectionInput) -> None:
    """It is in the context, in order, or the context is refused as too small for it.

    Unless there are pending messages: these are the current request then.
    """
    user_messages = [entry.message for entry in list_newest_user_messages(some)]
    if not some.pending:
        messages = projected(some).messages
        assert [message for message in messages if message in user_messages] == user_messages


@given(plain_inputs())
@examples(200)
def test_no_size_of_a_result_fails_a_run(some: ProjectionInput) -> None:
    """What is refused would be refused as well if every result were as long as the marker that stands for it."""
    if outcome(some).startswith("tool_results needs"):
        short = Thread(shortened(entry) for entry in some.thread)
        assert "needs" in outcome(replace(some, thread=short))


def shortened(entry: Entry) -> Entry:
    """A tool result that has no more tokens than its marker."""
    if entry.payload.get("role") != "tool":
        return entry
    tokens = min(entry.tokens, count_truncation_marker(entry.message))
    content = "x" * min(len(get_text(entry.payload["content"])), 4 * max(tokens - 13, 0))
    payload = {**entry.payload, "content": content}
    payload.pop("pieces", None)
    payload.pop("media_tokens", None)
    return replace(entry, payload=payload, tokens=tokens)


@given(plain_inputs())
def test_the_newest_is_kept_first(some: ProjectionInput) -> None:
    """A dropped message is older than every kept one, except those of the current run. The order is the thread's."""
    shown, dropped = conversation_shown(some)
    current = {entry.seq for block in current_matter(some) for entry in block}
    kept_seqs = [entry.seq for entry in shown if entry.seq not in current]
    if kept_seqs and dropped:
        assert max(entry.seq for entry in dropped) < min(kept_seqs)
    order = {get_end(message): index for index, message in enumerate(projected(some).messages)}
    indexes = [order[get_end(entry.message)] for entry in shown]
    assert indexes == sorted(indexes)


@given(plain_inputs())
def test_nothing_is_left_out_without_a_word(some: ProjectionInput) -> None:
    """`truncated` says so: without it nothing is left out, with it something is missing, or was in an epoch."""
    _, dropped = conversation_shown(some)
    meta = projected(some).meta
    if meta.truncated:
        assert dropped or meta.truncated_tool_results or some.policy.window == "epoch"
    else:
        assert not dropped


@given(inputs())
@examples(60)
def test_a_prefix_projects_as_the_whole_does_at_its_seq(some: ProjectionInput) -> None:
    """Later entries never change the context at a seq, to the byte."""
    for seq in range(some.thread.rev):
        prefix = Thread(some.thread.slice(0, seq))
        assert outcome(replace(some, thread=prefix, at_seq=None)) == outcome(replace(some, at_seq=seq))


@given(inputs())
def test_lanes_inherit_nothing(some: ProjectionInput) -> None:
    """A lane's context is the same where every other lane's entries say nothing at all."""

    def silenced(entry: Entry) -> Entry:
        if entry.lane in (None, some.context_ref):
            return entry
        return replace(entry, kind="input", payload=OTHER_PAYLOADS["input"], tokens=0)

    alone = Thread(silenced(entry) for entry in some.thread)
    assert outcome(replace(some, thread=alone)) == outcome(some)


@given(inputs())
def test_left_out_kinds_are_left_out(some: ProjectionInput) -> None:
    """Without `tool_call` or `tool_result` tool groups are left out; without `message` all other messages."""
    kinds = set(some.policy.include_kinds)
    made = projected(replace(some, system=None, pending=[]))
    history = made.messages[made.meta.summary_used :]
    for message in history:
        if message["role"] == "tool" or message.get("tool_calls"):
            assert {"tool_call", "tool_result"} <= kinds
        else:
            assert "message" in kinds
    if "summary" not in kinds or some.policy.summarization == "none":
        assert not made.meta.summary_used


@given(inputs())
def test_provider_data_goes_back_to_its_provider_only(some: ProjectionInput) -> None:
    """A message keeps a provider's own data where that provider reads it, and nowhere else."""
    for message in projected(some).messages:
        if data := message.get("provider_data"):
            assert data["provider"] == some.provider


@given(inputs(), st.sampled_from((None, {"type": "object"})))
def test_the_digest_covers_what_is_sent(some: ProjectionInput, schema: dict[str, str] | None) -> None:
    """The digest is SHA-256 over the RFC 8785 form of messages, tool schemas and output schema."""
    made = projected(replace(some, output_schema=schema))
    context = {"messages": made.messages, "tool_spec": made.tool_spec, "output_schema": schema}
    assert made.meta.digest == sha256(canonical_json(context).encode()).hexdigest()


@given(inputs())
def test_meta_says_what_the_context_is_of(some: ProjectionInput) -> None:
    """The basis, the totals and the policy in `meta` are those of the seq that was projected."""
    meta = projected(some).meta
    last = some.thread.last_seq if some.at_seq is None else some.at_seq
    assert (meta.basis_rev, meta.basis_last_seq, meta.entries_total) == (last + 1, last, last + 1)
    assert meta.pending_count == len(some.pending)
    assert meta.policy_hash == some.policy.hash
    assert 0 <= meta.entries_included <= meta.entries_total
