"""An interrupted session continues after its last committed entry."""

from __future__ import annotations

import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from clew import Clew, Session
from clew.errors import ArchiveUnavailable, ClewError, Interrupted, NotFound, ThreadMismatch
from clew.local import temporal_server
from clew_activities.archive import Archive
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import load_tools
from clew_activities.worker import WorkerSettings, make_worker
from clew_audit.audit import audit_session
from clew_audit.histories import ServerHistories, ask_server
from clew_audit.recovery import recover
from tests.support import toolbox
from tests.support.archives import Failing
from tests.support.rolling import OFTEN, make_id
from tests.support.scripts import answer_or_hang, leave_open_work, query_live_entries
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def begin_session(stack: Stack, clew: Clew, turns: int) -> Session:
    """Open a session and run some turns."""
    session = await clew.open(make_id(), model=stack.add_model(answer_or_hang), tools=["wait_for", "add"])
    for turn in range(turns):
        await session.ask(f"turn {turn}")
    return session


async def terminate(clew: Clew, session: Session) -> None:
    await clew.temporal.get_workflow_handle(session.id).terminate(reason="an operator's mistake")


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 12], ids=["before any rollover", "after rollovers"])
async def test_a_terminated_session_goes_on(stack: Stack, clew: Clew, archive: Archive, turns: int) -> None:
    """Every entry is intact, what ran and what waited has its end, and the next message works."""
    session = await begin_session(stack, clew, turns)
    await leave_open_work(session)
    before = await query_live_entries(session)
    await terminate(clew, session)
    await clew.temporal.get_workflow_handle(session.id).describe()
    with pytest.raises(Interrupted, match="clew recover"):
        await clew.open(session.id, model="scripted:any")

    done = await recover(clew.temporal, archive, session.id, task_queue="nowhere")
    assert (done.status, done.source, done.closing) == ("recovered", "history", 6)
    session = await clew.open(session.id)
    after = await session.entries(from_seq=before[0]["seq"])
    assert [entry.as_dict() for entry in after[: len(before)]] == before
    tool, hurry, hangs, waits, waited, recovered = after[len(before) :]
    assert tool.payload["content"] == "interrupted (recovered): this call may have run"
    assert (hurry.payload["event"], hurry.payload["reason"]) == ("dropped", "recovered")
    assert (waits.payload["event"], waits.payload["content"]) == ("dropped", "wait")
    for outcome in (hangs, waited):
        assert (outcome.payload["status"], outcome.payload["termination_reason"]) == ("cancelled", "recovered")
    reason = "an operator's mistake"
    assert recovered.payload == {"event": "recovered", "workflow": "terminated", "reason": reason}
    assert (await session.request("hangs").result()).termination_reason == "recovered"
    assert (await session.ask("and now?")).startswith("I read")
    assert (await audit_session(clew.temporal, archive, session.id)).clean


async def test_a_session_that_needs_no_recovery_is_left_alone(stack: Stack, clew: Clew, archive: Archive) -> None:
    """A running or hibernating session is reported as such and not changed; an unknown id is an error."""
    session = await begin_session(stack, clew, 1)
    before = await query_live_entries(session)
    assert (await recover(clew.temporal, archive, session.id, task_queue="nowhere")).status == "running"
    assert await query_live_entries(session) == before
    await session.hibernate()
    head = await archive.read_head(session.id)
    assert (await recover(clew.temporal, archive, session.id, task_queue="nowhere")).status == "whole"
    assert await archive.read_head(session.id) == head
    with pytest.raises(NotFound, match="nothing to recover"):
        await recover(clew.temporal, archive, make_id(), task_queue="nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["damaged", pytest.param("lost", marks=pytest.mark.slow)])
async def test_the_history_finds_an_archive_without_its_head(
    stack: Stack, clew: Clew, archive: Archive, head: str
) -> None:
    """The newest history names the root."""
    session = await begin_session(stack, clew, 14)
    entries = await session.entries()
    path = f"default/sessions/s-{session.id}.json"

    async def at_rest() -> bool:
        described = await clew.temporal.get_workflow_handle(session.id).describe()
        return not described.raw_description.pending_activities

    # What a rollover is writing would be written after the head is lost.
    await wait_until(at_rest)
    await terminate(clew, session)
    if head == "damaged":
        await stack.store.put(path, b"garbage")
    else:
        await stack.store.delete(path)
    done = await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)
    assert (done.status, done.source, len(done.remarks)) == ("recovered", "history", int(head == "damaged"))
    session = await clew.open(session.id)
    assert (await session.ask("and now?")).startswith("I read")
    assert (await session.entries())[: len(entries)] == entries
    assert (await audit_session(clew.temporal, archive, session.id)).clean


@pytest.mark.slow
@pytest.mark.parametrize("left", [pytest.param("nothing", marks=pytest.mark.slow), "an older archive"])
async def test_histories_replace_what_a_store_has_lost(stack: Stack, clew: Clew, archive: Archive, left: str) -> None:
    """Entries that are in no archive are taken from the histories of older workflow runs, each once and in order."""
    session = await begin_session(stack, clew, 6)
    await session.hibernate()
    archived = await archive.read_head(session.id)
    assert archived
    paths = [path async for path in archive.list_paths() if f"s-{session.id}" in path]
    older = {path: await stack.store.get(path) for path in paths} if left == "an older archive" else {}
    session = await clew.open(session.id)
    for turn in range(20):
        await session.ask(f"later turn {turn}" + " and so on" * 1000)
    entries = await session.entries()
    await session.hibernate()
    async for path in archive.list_paths():
        if f"s-{session.id}" in path:
            await stack.store.delete(path)
    for path, data in older.items():
        await stack.store.put(path, data)

    report = await audit_session(clew.temporal, archive, session.id)
    lost = [difference for difference in report.differences if "are not archived" in difference.problem]
    assert [difference.seq for difference in lost] == [archived.last_seq + 1 if older else 0]
    done = await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)
    assert (done.status, done.source) == ("recovered", "history")
    assert (await session.ask("and now?")).startswith("I read")
    assert (await session.entries())[: len(entries)] == entries
    report = await audit_session(clew.temporal, archive, session.id)
    assert report.clean, report.differences


@pytest.mark.slow
async def test_a_lost_archive_is_named_where_no_history_has_it(stack: Stack, clew: Clew, archive: Archive) -> None:
    """If the server has deleted the older workflow runs, too, the error says which entries are nowhere."""
    session = await begin_session(stack, clew, 1)
    for turn in range(16):
        await session.ask(f"{turn}" + " and so on" * 1000)
    await terminate(clew, session)
    async for path in archive.list_paths():
        if f"s-{session.id}" in path:
            await stack.store.delete(path)
    runs = [run async for run in ServerHistories(clew.temporal, session.id).read_runs()]
    for run in runs[:-1]:
        execution = WorkflowExecution(workflow_id=session.id, run_id=run.run_id)
        await clew.temporal.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
        )

    async def all_deleted() -> bool:
        return all(
            [run.history is None async for run in ServerHistories(clew.temporal, session.id).read_newest()][1:]
        )

    await wait_until(all_deleted)
    with pytest.raises(ThreadMismatch, match=r"entries 0 to \d+ are neither in the archive nor in a history"):
        await recover(clew.temporal, archive, session.id, task_queue=clew.task_queue)


async def test_a_signal_that_nobody_has_seen_leaves_a_fact(stack: Stack, archive: Archive) -> None:
    """What came between the last task of the workflow and its termination does not disappear silently."""
    clew = Clew(stack.clew.temporal, f"deserted-{uuid.uuid4().hex}")
    session = await clew.open(make_id(), model="scripted:any")
    await session._handle.workflow.signal("steer", {"content": "too late"})
    await terminate(clew, session)
    done = await recover(clew.temporal, archive, session.id, task_queue="nowhere")
    assert (done.status, done.closing) == ("recovered", 2)
    head = await archive.read_head(session.id)
    assert head
    entry, _ = [entry async for entry in archive.read(head.family, head.root)]
    assert (entry.payload["event"], entry.payload["kind"], entry.payload["content"]) == (
        "dropped", "steer", '{"content":"too late"}',
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("state", [pytest.param("kept", marks=pytest.mark.slow), "lost"])
async def test_without_a_history_the_archive_is_enough(
    stack: Stack, clew: Clew, archive: Archive, state: str
) -> None:
    """On a server that knows nothing of the session it goes on from its archive; its state may even be lost."""
    session = await begin_session(stack, clew, 12)
    await leave_open_work(session)
    head = await archive.read_head(session.id)
    assert head
    assert head.status == "live"
    await terminate(clew, session)
    if state == "lost":
        await stack.store.delete(f"default/families/s-{session.id}/states/{head.state}.json")
    async with temporal_server(ui=False) as other, make_http_client() as http:
        lone = await Clew.connect(other.address)
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": stack.provider.base_url})
        worker = make_worker(
            lone.temporal,
            WorkerSettings(
                task_queue=lone.task_queue,
                providers=providers,
                tools=load_tools([toolbox.__name__]),
                store=stack.store,
                thresholds=OFTEN,
            ),
            http,
        )
        async with worker:
            done = await recover(lone.temporal, archive, session.id, task_queue=lone.task_queue)
            assert (done.status, done.source, len(done.remarks)) == ("recovered", "archive", int(state == "lost"))
            session = await lone.open(session.id)
            assert (await session.ask("and now?")).startswith("I read")
            report = await audit_session(lone.temporal, archive, session.id)
            assert report.clean, report.differences
            assert report.entries == head.last_seq + 1 + done.closing + 3
            await session.close()


async def reset_session(clew: Clew, session: Session) -> None:
    """Let the operator take the session back to an older run, say something else, and terminate it."""
    runs = [run async for run in ServerHistories(clew.temporal, session.id).read_runs()]
    history = runs[1].history
    assert history
    tasks = [e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        workflow_execution=WorkflowExecution(workflow_id=session.id, run_id=runs[1].run_id),
        reason="a test",
        workflow_task_finish_event_id=tasks[4].event_id,
        request_id=uuid.uuid4().hex,
    )
    await clew.temporal.workflow_service.reset_workflow_execution(request)


@pytest.mark.slow
async def test_what_a_reset_has_told_otherwise_is_nobodys_to_drop(stack: Stack, clew: Clew, archive: Archive) -> None:
    """If archive and history differ, recovery is refused with the entry's seq until the operator names a source."""
    session = await begin_session(stack, clew, 17)
    head = await archive.read_head(session.id)
    assert head
    await reset_session(clew, session)
    # The reset may have left a request that runs again.
    await session.ask("another story", on_busy="queue")
    await terminate(clew, session)
    with pytest.raises(ThreadMismatch, match=r"from entry (\d+) on.*--keep archive or --keep history") as refused:
        await recover(clew.temporal, archive, session.id, task_queue="nowhere")
    parted = int(str(refused.value).partition("from entry ")[2].partition(" ")[0])
    assert parted <= head.last_seq
    assert await archive.read_head(session.id) == head

    done = await recover(clew.temporal, archive, session.id, task_queue="nowhere", keep="history")
    assert (done.source, done.dropped) == ("history", head.last_seq - parted + 1)
    session = await clew.open(session.id)
    said = [message["content"] for message in await session.transcript(from_seq=parted)]
    assert "another story" in said
    await session.ask("and now?")
    report = await audit_session(clew.temporal, archive, session.id)
    assert report.clean, report.differences
    assert "replaced" in {run.ended for run in report.runs}


@pytest.mark.slow
async def test_a_reset_that_tells_nothing_new_drops_nothing(stack: Stack, clew: Clew, archive: Archive) -> None:
    """The archive, which is ahead of the history, is what the session goes on from."""
    session = await begin_session(stack, clew, 17)
    head = await archive.read_head(session.id)
    assert head
    await reset_session(clew, session)
    await terminate(clew, session)
    done = await recover(clew.temporal, archive, session.id, task_queue="nowhere")
    assert (done.source, done.dropped) == ("archive", 0)
    session = await clew.open(session.id)
    assert (await session.ask("and now?")).startswith("I read")
    assert (await session.status()).rev == head.last_seq + 1 + done.closing + 3


class FailingWrites(Failing):
    """A store whose n-th write fails, or is done and its answer lost."""

    async def get(self, path: str) -> bytes:
        return await self.inner.get(path)

    async def get_size(self, path: str) -> int:
        return await self.inner.get_size(path)

    async def holds(self, path: str, size: int) -> bool:
        return await self.inner.holds(path, size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [pytest.param(False, id="before it is done", marks=pytest.mark.slow), pytest.param(True, id="after it is done")],
)
async def test_a_recovery_that_was_cut_off_is_repeated(
    stack: Stack, clew: Clew, archive: Archive, lost: bool
) -> None:
    """Whichever write to the store fails, attempts that are repeated make one session, with nothing twice."""
    session = await begin_session(stack, clew, 2)
    await leave_open_work(session)
    before = await query_live_entries(session)
    await terminate(clew, session)
    fail_at, status = 0, ""
    while not status:
        failing = Archive(FailingWrites(stack.store, fail_at, lost=lost), "default")
        try:
            status = (await recover(clew.temporal, failing, session.id, task_queue="nowhere")).status
        except ArchiveUnavailable:
            fail_at += 1
    assert fail_at == 5
    assert status == ("restarted" if lost else "recovered")
    assert (await session.ask("and now?")).startswith("I read")
    after = await query_live_entries(session)
    assert after[: len(before)] == before
    assert [row["kind"] for row in after[len(before) :]].count("run") == 3
    assert (await audit_session(clew.temporal, archive, session.id)).clean


async def test_a_run_whose_history_is_being_deleted_is_gone() -> None:
    """The server still has its record. Another refusal is an error."""

    async def refuse(message: str) -> int:
        raise RPCError(message, RPCStatusCode.INVALID_ARGUMENT, b"")

    gone = refuse("Requested workflow history not found, may have passed retention period.")
    assert await ask_server(gone, "s-1") is None
    with pytest.raises(ClewError, match="refused the call"):
        await ask_server(refuse("Invalid NextPageToken."), "s-1")
