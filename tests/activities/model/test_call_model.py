from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from clew import Request, Session
from clew.contract import ContextQuery, ExternalToolSpec, ModelOptions
from clew.local import Reply, ToolCall, scripted_model
from clew_activities.model import call_model
from clew_activities.model.model_table import find_prices
from clew_activities.providers import ProviderError, load_providers
from clew_activities.providers.provider_errors import (
    ContextLengthExceeded,
    EmptyReply,
    RateLimited,
    TruncatedStream,
    Unauthorized,
)
from clew_activities.worker import Capacity
from clew_workflows.contract.names import name_model_queue
from clew_workflows.contract.outcomes import compute_cost_usd
from clew_workflows.contract.outputs import Context
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.host import ingress, retries
from clew_workflows.host.runtime import LOCAL_CONTEXTS
from clew_workflows.protocol import ModelAnswered, Outdated
from clew_workflows.session import views
from clew_workflows.thread.context.contexts import take_page
from tests.support.model_calls import (
    Queried,
    make_activities,
    make_environment,
    make_refusal,
    make_rpc_error,
    open_session,
)
from tests.support.provider_server import run_fake_server
from tests.support.rolling import SlowModel, list_model_queues, make_id, run_rolling_worker
from tests.support.session_harness import SessionHarness
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import wait_until


async def fetch_context(queried: Queried) -> Context:
    return await (await make_environment(queried)).run(call_model._fetch_context, queried.session.call)


async def call_once(
    queried: Queried,
    *replies: Reply,
    attempt: int = 1,
    beats: Sequence[Any] = (),
    on_heartbeat: Callable[..., None] | None = None,
) -> tuple[ModelAnswered, list[dict[str, Any]]]:
    """An attempt of the session's call, with the provider's replies in turn; what came back, and what was sent."""
    left = list(replies)
    async with scripted_model(lambda _body: left.pop(0)) as provider, httpx.AsyncClient(trust_env=False) as http:
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": provider.base_url})
        made = await make_environment(queried, attempt, beats)
        if on_heartbeat:
            made.on_heartbeat = on_heartbeat
        answer = await made.run(make_activities(providers, http).call_model, queried.session.call)
        assert isinstance(answer, ModelAnswered)
        return answer, provider.requests


async def test_the_policy_decides_whether_a_marker_may_be_shown() -> None:
    """With `refuse` the call fails for good before it is sent; without, a marker is sent and the recipe says so."""
    blob = {"digest": "0" * 64, "media_type": "image/png", "bytes": 9, "name": "a.png"}
    content: Any = [{"type": "text", "text": "What is it?"}, {"type": "image", "blob": blob}]
    answer, sent = await call_once(Queried(open_session(content)), Reply("hi"))
    assert "[image: a.png, image/png, 9 bytes]" in str(sent[0]["messages"])
    assert answer.fitting is not None
    assert set(answer.fitting.media) == {"0" * 12}
    refusing = open_session(content, context_policy=ContextPolicy(unsupported_content="refuse"))
    with pytest.raises(ApplicationError) as error:
        await call_once(Queried(refusing))
    assert (error.value.type, error.value.non_retryable) == ("unsupported_content", True)


async def test_a_call_sends_what_the_session_projects() -> None:
    """The answer carries the recipe: digest, policy, size of the context, and the attempt."""
    session = open_session("hello", system_prompt="Be brief.", model_options=ModelOptions(temperature=0.5, seed=4))
    answer, sent = await call_once(Queried(session), Reply("hi"), attempt=3)
    assert [(m["role"], m["content"]) for m in sent[0]["messages"]] == [("system", "Be brief."), ("user", "hello")]
    assert (sent[0]["model"], sent[0]["temperature"], sent[0]["seed"]) == ("m", 0.5, 4)
    assert [tool["function"]["name"] for tool in sent[0]["tools"]] == ["add", "look"]
    shown = session.build_context(session.call).meta
    assert answer.reply.content == "hi"
    assert (answer.digest, answer.policy_hash) == (shown.digest, shown.policy_hash)
    assert (answer.input_tokens, answer.attempt) == (shown.estimated_tokens, 3)


async def test_the_context_is_fetched_by_the_calls_id_in_pages() -> None:
    """The activity queries its own workflow run, page by page, until the last page."""
    policy = ContextPolicy(max_input_tokens=10**8, reserve_output_tokens=0, keep_last_turns=100)
    session = SessionHarness(context_policy=policy)
    for _ in range(8):
        session.ask("x" * 250_000)
        session.reply("fine")
    session.ask("and now?")
    queried = Queried(session)
    context = await fetch_context(queried)
    shown = session.build_context(session.call)
    assert (context.messages, context.tool_spec, context.meta) == (shown.messages, shown.tool_spec, shown.meta)
    assert [(query.id, query.run_id, query.query) for query in queried.queries] == [
        ("s-1", "run-of-s-1", "context")
    ] * 3
    assert [query.args[0]["page"] for query in queried.queries] == [0, 6, 12]
    assert {query.args[0]["call_id"] for query in queried.queries} == {session.call.call_id}


async def test_a_context_from_the_board_is_the_one_that_the_session_answers() -> None:
    """The first attempt queries nothing; the second queries the session, and sends the same."""
    session = open_session("hello", system_prompt="Be brief.")
    queried = Queried(session)
    LOCAL_CONTEXTS.post("run-of-s-1", session.call, session.build_context(session.call))
    first, second = [await fetch_context(queried) for _ in range(2)]
    assert len(queried.queries) == 1
    assert first == second


@pytest.mark.parametrize("damage", ["a message", "a schema", "a page"])
async def test_a_context_that_does_not_arrive_as_it_was_projected_is_not_sent(damage: str) -> None:
    """A context that does not match its digest is a retryable failure."""
    session = open_session()
    page = take_page(session.build_context(session.call), 0)
    match damage:
        case "a message":
            page["messages"] = [{"role": "user", "content": "hello!"}]
        case "a schema":
            page["tool_spec"] = page["tool_spec"][:1]
        case _:
            page["messages"] = page["messages"] * 2
    with pytest.raises(ApplicationError) as caught:
        await fetch_context(Queried(session, page))
    assert (caught.value.type, caught.value.non_retryable) == ("context_damaged", False)


@pytest.mark.parametrize(
    "status",
    [
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.INTERNAL,
    ],
)
async def test_a_session_that_cannot_be_reached_is_asked_again_in_place(status: RPCStatusCode) -> None:
    """Its worker may just have died: the attempt, which was paid for with events, is not given up."""
    queried = Queried(open_session(), make_rpc_error(status))
    context = await fetch_context(queried)
    assert context.messages == [{"role": "user", "content": "hello"}]
    assert len(queried.queries) == 2
    assert all(query.rpc_timeout == timedelta(seconds=10) for query in queried.queries)


@pytest.mark.parametrize(
    "status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED]
)
async def test_a_session_that_is_not_there_is_not_asked_again(status: RPCStatusCode) -> None:
    queried = Queried(open_session(), make_rpc_error(status))
    with pytest.raises(RPCError):
        await fetch_context(queried)
    assert len(queried.queries) == 1


@pytest.mark.parametrize("word", ["context_overflow", "invalid_input", "invalid_token_budget"])
async def test_a_query_that_the_session_refuses_is_final_and_typed(word: str) -> None:
    """A refused query is not retried; the failure has the refusal's type and message."""
    queried = Queried(open_session(), make_refusal(f"{word}: the request needs 9 tokens: shorten it"))
    with pytest.raises(ApplicationError) as caught:
        await fetch_context(queried)
    assert (caught.value.type, caught.value.non_retryable) == (word, True)
    assert caught.value.message == "the request needs 9 tokens: shorten it"


async def test_what_the_session_itself_says_is_understood() -> None:
    """The session refuses a call that it does not know, with the refusal's own type."""
    session = open_session()
    unknown = session.call.model_copy(update={"call_id": "call-99"})
    with pytest.raises(Exception, match="call-99") as refusal:
        views.build_projection(session.state, session.thread, ContextQuery(call_id="call-99"))
    error = ingress.make_query_error(refusal.value)  # type: ignore[arg-type]
    made = await make_environment(Queried(session, make_refusal(error.message)))
    with pytest.raises(ApplicationError) as caught:
        await made.run(call_model._fetch_context, unknown)
    assert (caught.value.type, caught.value.non_retryable) == ("invalid_input", True)


@pytest.mark.parametrize(
    "message", ["something broke", "", "Workflow Task in failed state", "word: ", "KeyError 7: x", "a b: c"]
)
async def test_a_query_that_fails_otherwise_may_succeed_at_another_attempt(message: str) -> None:
    """A failed query is retried, because a workflow task may fail on a worker that is being replaced."""
    with pytest.raises(ApplicationError) as caught:
        await fetch_context(Queried(open_session(), make_refusal(message)))
    assert (caught.value.type, caught.value.non_retryable) == ("context_unavailable", False)


async def test_a_context_that_must_fit_and_does_not_never_reaches_the_provider() -> None:
    """The refusal comes as the activity's failure."""
    session = open_session("x" * 1000, context_policy=ContextPolicy(max_input_tokens=50, reserve_output_tokens=10))
    with pytest.raises(Exception, match="tokens") as overflow:
        session.build_context(session.call)
    queried = Queried(session, make_refusal(f"context_overflow: {overflow.value}"))
    with pytest.raises(ApplicationError) as caught:
        await call_once(queried)
    assert (caught.value.type, caught.value.non_retryable) == ("context_overflow", True)


async def test_a_context_from_the_board_is_a_copy_of_the_one_by_query() -> None:
    """What a provider does to its request does not change the session's own messages."""
    session = open_session("hello", system_prompt="Be brief.")
    by_query = await fetch_context(Queried(session))
    environment, posted = await make_environment(Queried(session)), session.build_context(session.call)
    LOCAL_CONTEXTS.post(environment.info.workflow_run_id or "", session.call, posted)
    from_board = await environment.run(call_model._fetch_context, session.call)
    assert from_board == by_query
    from_board.messages[-1]["content"] = "changed"
    assert posted.messages[-1]["content"] == "hello"


async def test_a_repeated_attempt_sends_a_heartbeat_before_the_first_query() -> None:
    """The server shows no longer what the attempt before has read."""
    beats: list[dict[str, Any]] = []
    queried = Queried(open_session())
    at_query: list[int] = []
    queried.on_query = lambda: at_query.append(len(beats))
    await call_once(queried, Reply("hi"), attempt=2, on_heartbeat=beats.append)
    assert at_query == [1]
    call = queried.session.call
    assert beats[0] == {
        "request_id": call.request_id,
        "run_id": "run-1",
        "call_id": "call-1",
        "attempt": 2,
        "iteration": 1,
        "offset": 0,
        "text": "",
        "thinking_offset": 0,
    }


async def test_a_cancellation_ends_the_call() -> None:
    """A cancellation ends the activity during the query and during the provider's reply."""
    queried = Queried(open_session(), *[make_rpc_error(RPCStatusCode.UNAVAILABLE)] * 100)
    made = await make_environment(queried)
    queried_once = asyncio.Event()
    queried.on_query = queried_once.set
    async with httpx.AsyncClient() as http:
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": "http://127.0.0.1:1"})
        task = asyncio.create_task(made.run(make_activities(providers, http).call_model, queried.session.call))
        await queried_once.wait()
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def fail_call(*replies: Reply, attempt: int = 1) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        await call_once(Queried(open_session()), *replies, attempt=attempt)
    return caught.value


@pytest.mark.parametrize(
    ("reply", "word", "final", "wait"),
    [
        (Reply("slow down", status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "7"}), "rate_limited", 0, 7),
        (Reply("slow down", status=HTTPStatus.TOO_MANY_REQUESTS), "rate_limited", 0, None),
        (Reply("broken", status=HTTPStatus.BAD_GATEWAY), "provider_unavailable", 0, None),
        (Reply("wrong key", status=HTTPStatus.UNAUTHORIZED), "unauthorized", 1, None),
        (Reply("no such thing", status=HTTPStatus.UNPROCESSABLE_ENTITY), "bad_request", 1, None),
        (Reply("a b c d e f", disconnect_after=2), "truncated_stream", 0, None),
        (Reply(""), "empty_reply", 0, None),
    ],
)
async def test_a_providers_failure_comes_in_the_terms_of_the_retry_policy(
    reply: Reply, word: str, final: bool, wait: float | None
) -> None:
    """A failure has the error's type, whether and when to retry, the provider's message and the status."""
    error = await fail_call(reply)
    assert (error.type, error.non_retryable) == (word, bool(final))
    assert error.next_retry_delay == (None if wait is None else timedelta(seconds=wait))
    if reply.status != HTTPStatus.OK:
        assert reply.text in error.message
        assert error.details[0]["status"] == reply.status


@pytest.mark.parametrize("reply", [Reply(""), Reply("a b c d", disconnect_after=2)])
async def test_a_third_reply_that_came_to_nothing_is_final(reply: Reply) -> None:
    """Each was paid for. An attempt that was lost, or that failed otherwise, is none of them."""
    down = Reply("?", status=HTTPStatus.SERVICE_UNAVAILABLE)
    assert await fail_in_turn(reply, None, down, reply, None, reply) == [False, False, False, True]
    assert not (await fail_call(down, attempt=50)).non_retryable


async def fail_in_turn(*replies: Reply | None) -> list[bool]:
    """Make attempts of a call, each with what the one before has left; None: it is lost with its worker.

    Returns:
        Of each that was not lost, whether it is final.
    """
    ends: list[bool] = []
    beats: list[tuple[Any, ...]] = [()]
    for attempt, reply in enumerate(replies, 1):
        if reply is not None:
            with pytest.raises(ApplicationError) as caught:
                await call_once(
                    Queried(open_session()),
                    reply,
                    attempt=attempt,
                    beats=beats[-1],
                    on_heartbeat=lambda *details: beats.append(details),
                )
            ends.append(caught.value.non_retryable)
    return ends


@pytest.mark.parametrize(
    ("reply", "attempt", "final"),
    [
        (Reply("down", status=HTTPStatus.BAD_GATEWAY), 1, False),
        (Reply("down", status=HTTPStatus.BAD_GATEWAY), 3, True),
        (Reply("wait", status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "2"}), 1, False),
        (Reply("wait", status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "9"}), 1, True),
        (Reply(""), 1, False),
    ],
)
async def test_an_outage_is_final_soon_where_another_model_can_be_called(
    reply: Reply, attempt: int, final: bool
) -> None:
    """At the third attempt, or if the provider wants a longer wait."""
    session = open_session(fallbacks=("scripted:other",))
    with pytest.raises(ApplicationError) as caught:
        await call_once(Queried(session), reply, attempt=attempt)
    assert caught.value.non_retryable == final


async def test_the_text_of_a_reply_that_a_fallback_begins_anew_is_not_kept() -> None:
    """Its tokens are: they were paid for."""
    session = open_session(fallbacks=("scripted:other",))
    with pytest.raises(ApplicationError) as caught:
        await call_once(Queried(session), Reply("one two three four five six", disconnect_after=4), attempt=3)
    _, read = caught.value.details
    assert (read.reply.content, read.reply.usage.estimated_calls) == ("", 1)
    assert read.reply.usage.output_tokens > 0


async def test_a_provider_that_sends_nothing_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for as long as where there is no other model."""
    monkeypatch.setattr(call_model, "SILENCE_BEFORE_FALLBACK", 0.1)
    monkeypatch.setattr(retries, "TIME_BEFORE_FALLBACK", timedelta(seconds=0.1))
    session, silence = open_session(fallbacks=("scripted:other",)), asyncio.Event()
    async with run_fake_server() as server, httpx.AsyncClient(trust_env=False) as http:
        server.answer(silence)
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": f"{server.url}/v1"})
        made = await make_environment(Queried(session))
        with pytest.raises(ApplicationError, match="sent nothing") as caught:
            await made.run(make_activities(providers, http).call_model, session.call)
        silence.set()
    assert (caught.value.type, caught.value.non_retryable) == ("provider_unavailable", True)


async def fail_unreachable(activities: call_model.ModelActivities, seconds: float, attempt: int) -> ApplicationError:
    """Make an attempt of a call that was scheduled some seconds ago, of a provider that refuses connections."""
    session = open_session()
    made = await make_environment(Queried(session), attempt)
    scheduled = made.info.started_time - timedelta(seconds=seconds)
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2)
    made.info = replace(
        made.info,
        scheduled_time=scheduled,
        retry_policy=policy,
        schedule_to_close_timeout=timedelta(minutes=15),
    )
    with pytest.raises(ApplicationError, match="cannot be reached") as caught:
        await made.run(activities.call_model, session.call)
    assert caught.value.type == "provider_unavailable"
    return caught.value


async def test_a_provider_that_was_never_reached_fails_soon() -> None:
    """Once this process had a connection to the provider, an outage is waited for as long as the request has time."""
    async with httpx.AsyncClient(trust_env=False) as http:
        down = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": "http://127.0.0.1:1"})
        activities = make_activities(down, http)
        failures = [await fail_unreachable(activities, *at) for at in ((0, 1), (1, 2), (3, 3))]
        assert [failure.non_retryable for failure in failures] == [False, False, True]
        async with run_fake_server() as server:
            server.answer(status=503)
            activities._providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": server.url})
            made = await make_environment(Queried(open_session()))
            with pytest.raises(ApplicationError, match="503"):
                await made.run(activities.call_model, open_session().call)
        activities._providers = down
        assert not (await fail_unreachable(activities, 600, 20)).non_retryable


async def test_a_provider_that_the_worker_does_not_know_is_final() -> None:
    """The failure names the provider that this worker lacks, and its configuration."""
    with pytest.raises(ApplicationError, match="OPENAI_API_KEY") as caught:
        await call_once(Queried(open_session(model="openai:gpt-4o")))
    assert (caught.value.type, caught.value.non_retryable) == ("unknown_model", True)


@pytest.mark.parametrize(
    ("error", "final", "details"),
    [
        (RateLimited("slow", status=429, retry_after=0), False, {"status": 429}),
        (ContextLengthExceeded("long", status=400, details={"limit": 8}), True, {"limit": 8, "status": 400}),
        (Unauthorized("no"), True, None),
        (EmptyReply("nothing"), False, None),
        (TruncatedStream("broken"), False, None),
    ],
)
def test_every_provider_error_keeps_what_it_knows(
    error: ProviderError, final: bool, details: dict[str, Any] | None
) -> None:
    """The failure has the error's type, message and details, and the provider's wait, zero included."""
    failure = ActivityEnvironment().run(call_model.make_provider_failure, error)
    assert (failure.type, failure.message, failure.non_retryable) == (error.type, error.message, final)
    assert list(failure.details) == ([details] if details else [])
    assert failure.next_retry_delay == (None if error.retry_after is None else timedelta(0))


async def test_the_arguments_of_a_reply_are_checked_where_it_is_made() -> None:
    """By the schemas of the context's tools: the session reads what is wrong."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = (ExternalToolSpec(name="weather", description="Ask the page.", parameters=city),)
    calls = [ToolCall("weather", {name: "Rome"}, f"of-{name}") for name in ("city", "town")]
    answer, _ = await call_once(Queried(open_session(external_tools=tools)), Reply(tool_calls=calls))
    assert [call.problem for call in answer.reply.tool_calls] == [None, "city: it is missing"]


async def test_a_reply_says_what_it_cost() -> None:
    """A reply has its cost in USD and the price; both are absent if the price is unknown."""
    answer, _ = await call_once(Queried(open_session(model="scripted:gpt-4o")), Reply("hi"))
    assert answer.prices == find_prices("openai:gpt-4o")
    assert answer.reply.usage.cost_usd == compute_cost_usd(answer.prices, answer.reply.usage)
    assert answer.reply.usage.cost_usd
    unknown, _ = await call_once(Queried(open_session()), Reply("hi"))
    assert (unknown.prices, unknown.reply.usage.cost_usd) == ((), None)


async def test_a_model_without_a_price_is_not_called_where_there_must_be_one() -> None:
    """The call fails before a request is sent, and the message says what to do."""
    session = open_session(limits={"max_cost_usd": 1})
    queried = Queried(session)
    with pytest.raises(ApplicationError, match="no price of scripted:m") as caught:
        await call_once(queried)
    assert (caught.value.type, caught.value.non_retryable) == ("unknown_price", True)
    assert "CLEW_PRICES" in str(caught.value)
    assert not queried.queries


async def test_with_a_refused_length_goes_what_was_counted() -> None:
    """Only an overflow carries the context's tokens, from which the session learns the model's limit."""
    session = open_session("hello")
    for status, words in (
        (HTTPStatus.BAD_REQUEST, "prompt is too long: 9 tokens > 8 maximum"),
        (HTTPStatus.FORBIDDEN, "no"),
    ):
        with pytest.raises(ApplicationError) as caught:
            await call_once(Queried(session), Reply(words, status=status))
        (details,) = caught.value.details
        known = {"actual": 9, "limit": 8, "counted": session.build_context(session.call).meta.estimated_tokens}
        assert details == {"status": status.value} | (known if status == HTTPStatus.BAD_REQUEST else {})


async def test_a_call_for_another_deployment_calls_no_model() -> None:
    """The worker answers at once which deployment it is of; a call without one is made by any worker."""
    async with httpx.AsyncClient(trust_env=False) as http:
        activities = make_activities(load_providers({}), http, "d-2")
        queried = Queried(open_session())
        answer = await (await make_environment(queried)).run(activities.call_model, queried.session.call)
        assert answer == Outdated(deployment="d-2")
        assert queried.queries == []


async def test_a_worker_with_more_hooks_than_the_session_runs_calls_no_model() -> None:
    """A session that has just learned of fewer hooks is told to try another worker, three times in all."""
    beats: list[tuple[Any, ...]] = [()]
    async with httpx.AsyncClient(trust_env=False) as http:
        activities = make_activities(load_providers({}), http, hooks=("request", "tool"))
        queried = Queried(open_session())
        call = queried.session.call.model_copy(update={"hooks": None, "checks": ("tool",)})
        for attempt, is_final in ((2, False), (5, False), (6, True)):
            environment = await make_environment(queried, attempt, beats[-1])
            environment.on_heartbeat = lambda *details: beats.append(details)
            with pytest.raises(ApplicationError, match="fewer hooks") as caught:
                await environment.run(activities.call_model, call)
            assert (caught.value.type, caught.value.non_retryable) == ("hook_failed", is_final)
        assert queried.queries == []


async def test_a_call_follows_the_workers(stack: Stack) -> None:
    """Workers for sessions alone decline it; the session remembers that, and a new one is told."""
    model = stack.add_model("fine")
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=model)
        assert await session.ask("1") == "fine"
    async with (
        run_rolling_worker(stack, task_queue=clew.task_queue, serves=["sessions", "tools"]),
        run_rolling_worker(stack, task_queue=clew.task_queue, serves=["models"]),
    ):
        assert await session.ask("2") == "fine"
        assert await session.ask("3") == "fine"
        newer = await clew.open(make_id(), model=model)
        assert await newer.ask("1") == "fine"
    own, models = clew.task_queue, name_model_queue(clew.task_queue)
    assert await list_model_queues(stack.clew, session) == [own, own, models, models]
    assert await list_model_queues(stack.clew, newer) == [models]
    assert len(stack.list_requests(model)) == 4


async def test_temporal_hands_over_a_call_with_its_workflow_task(stack: Stack) -> None:
    """The server starts the call in the transaction that takes the task's commands: no dispatch lies between."""
    async with run_rolling_worker(stack) as clew:
        session = await clew.open(make_id(), model=stack.add_model("fine"))
        for number in range(3):
            await session.ask(f"{number}")
        waits = await list_waits(stack, session)
    assert min(waits) < 1_000_000


async def list_waits(stack: Stack, session: Session) -> list[int]:
    """List the nanoseconds between a model call's scheduling and its start."""
    history = await stack.clew.temporal.get_workflow_handle(session.id).fetch_history()
    events = {event.event_id: event for event in history.events}
    starts = [event for event in events.values() if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED]
    waits = []
    for start in starts:
        scheduled = events[start.activity_task_started_event_attributes.scheduled_event_id]
        if scheduled.activity_task_scheduled_event_attributes.activity_type.name == "call_model":
            waits.append(start.event_time.ToNanoseconds() - scheduled.event_time.ToNanoseconds())
    return waits


async def test_calls_that_hang_leave_room_for_what_is_short(stack: Stack) -> None:
    """A worker makes half of its calls directly; sessions can be opened and changed while they and others wait."""
    model, slots = SlowModel(), 2
    name = stack.add_model(model)
    async with run_rolling_worker(stack, capacity=Capacity(model_calls=2 * slots, store_calls=1)) as clew:
        sessions = [await clew.open(make_id(), model=name) for _ in range(2 * slots + 1)]
        requests = [await session.message("hello") for session in sessions]
        for _ in range(2 * slots):
            await model.wait_for_call()
        assert model.called.empty()
        other = await clew.open(make_id(), model=stack.add_model("fine"), system_prompt="Be kind.")
        assert (await other.configure(system_prompt="Be brief.")).status == "applied"
        model.release(len(requests))
        assert await asyncio.gather(*(request.answer() for request in requests)) == ["re: hello"] * len(requests)
        queues = [await list_model_queues(stack.clew, session) for session in sessions]
    own, models = clew.task_queue, name_model_queue(clew.task_queue)
    assert sorted(queues) == sorted([[own]] * slots + [[own, models]] * (slots + 1))


async def test_no_call_goes_ahead_of_those_that_wait(stack: Stack) -> None:
    """When a direct call ends, its room is for the queue's calls, and a new call waits behind them."""
    model = SlowModel()
    name = stack.add_model(model)
    async with run_rolling_worker(stack, capacity=Capacity(model_calls=2)) as clew:

        async def send(text: str) -> tuple[Session, Request]:
            session = await clew.open(make_id(), model=name)
            return session, await session.message(text)

        sent = [await send("direct"), await send("queued")]
        assert {get_last_message(await model.wait_for_call())["content"] for _ in sent} == {"direct", "queued"}
        sent += [await send("waits")]
        model.release()
        assert get_last_message(await model.wait_for_call())["content"] == "waits"
        sent += [await send("new")]

        async def is_declined() -> bool:
            return await list_model_queues(clew, sent[-1][0]) == [clew.task_queue, name_model_queue(clew.task_queue)]

        await wait_until(is_declined)
        assert model.called.empty()
        model.release(3)
        assert [await request.answer() for _, request in sent] == ["re: direct", "re: queued", "re: waits", "re: new"]
