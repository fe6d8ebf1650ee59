"""The table of effects: for each, the activity that carries it out, where, and within which bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from clew_workflows.host.execution import (
    BLOBS_TIMEOUT,
    SIGN_TIMEOUT,
    SUMMARY_TIMEOUT,
    ActivityOptions,
    choose_options,
)
from clew_workflows.protocol import (
    ArchiveRef,
    Archiving,
    CallModel,
    CheckBlobs,
    DescribeModel,
    Effect,
    FunctionRoute,
    PlannedCall,
    Prepare,
    Recall,
    RemoteRoute,
    Route,
    RunHooks,
    SignCheckpoint,
    Summarize,
    Thaw,
)
from clew_workflows.session import ui
from tests.support.session_harness import SessionHarness

ARCHIVE = ArchiveRef(execution="x", family="s-1", upto=7)
LEFT = timedelta(seconds=100)


def make_effects() -> list[Effect]:
    """One of each type, in the order of the union."""
    session = SessionHarness()
    session.ask()
    call = session.call
    session.reply("", "add")
    return [
        Prepare(model="openai:gpt-4o", tools=()),
        DescribeModel(model="openai:gpt-4o"),
        RunHooks(point="request", request_id="r-1", items=()),
        call,
        session.round.calls[0],
        Summarize(
            summary_id="summary-1", context_ref="default", model="openai:gpt-4o", encoding="heuristic",
            max_input_tokens=1000, max_output_tokens=100, from_seq=1, to_seq=5,
        ),
        Archiving(archive=ARCHIVE),
        Thaw(archive=ARCHIVE, state="digest"),
        Recall(archive=ARCHIVE, context_ref="default", policies=(), before=8),
        SignCheckpoint(number=1, expires_seconds=60),
        CheckBlobs(family="s-1", blobs=({"digest": "0" * 64, "media_type": "image/png", "bytes": 9},)),
    ]  # fmt: skip


def list_options(time_left: timedelta | None = LEFT) -> dict[type, ActivityOptions]:
    return {type(effect): choose_options(effect, time_left, "clew") for effect in make_effects()}


def test_every_effect_has_an_activity_and_a_label() -> None:
    """No two share an activity, and Temporal takes 400 bytes of a label."""
    assert tuple(type(effect) for effect in make_effects()) == get_args(Effect)
    assert len({options.activity for options in list_options().values()}) == len(get_args(Effect))
    for effect in make_effects():
        assert 0 < len(ui.make_label(effect, SessionHarness().state).encode()) < 400


def test_models_and_tools_have_queues_of_their_own() -> None:
    """However many of them hang, there is room for what every session needs at once."""
    queues = {kind: options.queue for kind, options in list_options().items() if options.queue}
    models, tools = "clew-models", "clew-tools"
    assert queues == {RunHooks: tools, CallModel: models, Summarize: models, PlannedCall: tools}


def test_workers_for_sessions_and_models_make_calls_directly() -> None:
    """On the session's own queue, unless one has declined the call or the provider's rate is limited."""
    (call,) = (effect for effect in make_effects() if isinstance(effect, CallModel))
    provider, declined = call.model.partition(":")[0], call.model_copy(update={"declined": True})
    assert choose_options(call, LEFT, "clew", calls_models=True).queue == "clew"
    assert choose_options(declined, LEFT, "clew", calls_models=True).queue == "clew-models"
    assert choose_options(call, LEFT, "clew", [provider], calls_models=True).queue == f"clew-models-{provider}"


def test_a_limited_provider_has_a_queue_of_its_own() -> None:
    """For model calls and summaries. Those of other providers stay on the queue of all model calls."""
    for effect in make_effects():
        if isinstance(effect, CallModel | Summarize):
            provider = effect.model.partition(":")[0]
            assert choose_options(effect, LEFT, "clew", [provider]).queue == f"clew-models-{provider}"
            assert choose_options(effect, LEFT, "clew", ["another"]).queue == "clew-models"


def test_nothing_takes_longer_than_there_is_time() -> None:
    """Summaries and signatures have a time of their own. Where all attempts have no limit, each attempt has one."""
    own = {Summarize: SUMMARY_TIMEOUT, SignCheckpoint: SIGN_TIMEOUT, CheckBlobs: BLOBS_TIMEOUT}
    assert {kind: options.within for kind, options in list_options().items()} == {
        kind: own.get(kind, LEFT) for kind in get_args(Effect)
    }
    for kind in (Prepare, DescribeModel, Archiving, Thaw, Recall):
        assert list_options(None)[kind].attempt is not None


def test_a_tool_that_is_not_idempotent_is_attempted_once() -> None:
    """Also where its worker is lost; any other may be given to others, and is waited for when it is asked to stop."""
    (tool_call,) = (effect for effect in make_effects() if isinstance(effect, PlannedCall))
    for idempotent, attempts in ((True, 3), (False, 1)):
        tool = tool_call.tool.model_copy(update={"idempotent": idempotent})
        options = choose_options(PlannedCall(tool_call.call, tool), LEFT, "clew")
        assert options.retries is not None
        assert (options.retries.maximum_attempts, options.waits) == (attempts, True)


def test_a_tool_may_have_a_queue_of_its_own() -> None:
    """The workers of another deployment run it, or a worker that has nothing of Clew's, as its own activity."""
    (tool_call,) = (effect for effect in make_effects() if isinstance(effect, PlannedCall))
    routes: dict[str, Route] = {"gpu-tools": FunctionRoute(type="function", task_queue="gpu")}
    routes |= {"ts": RemoteRoute(type="remote", task_queue="ts", activity="look")}
    plans = {
        queue: choose_options(
            PlannedCall(tool_call.call, tool_call.tool.model_copy(update={"route": route})), LEFT, "clew"
        )
        for queue, route in routes.items()
    }
    assert {name: options.queue for name, options in plans.items()} == {name: name for name in routes}
    remote = plans["ts"]
    assert (remote.activity, remote.argument, remote.activity_id) == ("look", {}, "tool00001")
    assert (remote.heartbeat, remote.attempt, remote.waits) == (None, timedelta(seconds=60), True)


def test_a_store_is_asked_a_few_times_where_somebody_waits_and_for_ever_where_nobody_does() -> None:
    """Temporal's 0 means without an end."""
    assert (retries := list_options(LEFT)[Archiving].retries) is not None
    assert retries.maximum_attempts == 3
    assert (retries := list_options(None)[Archiving].retries) is not None
    assert retries.maximum_attempts == 0
