"""Recorded histories are replayed before a deployment: Clew's sessions, and a team's own workflows."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.worker import Worker

from clew.errors import NewerVersion
from clew.testing import ReplayFailed, replay
from clew_audit.json_lines import FileDamaged
from tests.support.corpus import NEXT, read_corpus
from tests.support.stack import Stack
from tests.support.waiting import wait_until

HISTORIES = read_corpus(NEXT).histories


@workflow.defn(name="Billing", sandboxed=False)
class Billing:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(milliseconds=1))


@workflow.defn(name="Billing", sandboxed=False)
class ChangedBilling:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("charge", start_to_close_timeout=timedelta(seconds=1))


async def test_recorded_sessions_are_replayed(tmp_path: Path) -> None:
    """Histories and files of them, in the format of `temporal workflow show`."""
    file = tmp_path / "session.json"
    file.write_text(HISTORIES[1].to_json())
    assert await replay(HISTORIES[0], file, str(file)) == 3


async def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    """Saved histories of several workflow runs, and below it; a file without histories is named."""
    corpus = read_corpus(NEXT)
    (tmp_path / "more").mkdir()
    (tmp_path / "rollover.jsonl").write_bytes(corpus.files["histories/rollover-1.jsonl"])
    (tmp_path / "more" / "session.json").write_text(HISTORIES[1].to_json())
    runs = sum(history.workflow_id.startswith("rollover-1") for history in corpus.histories)
    assert await replay(tmp_path) == runs + 1
    (tmp_path / "more" / "notes.txt").write_text("nothing")
    with pytest.raises(FileDamaged, match=r"notes\.txt holds no event history"):
        await replay(tmp_path)
    (tmp_path / "more" / "notes.txt").write_text('{"clew": "histories", "version": 2}\n')
    with pytest.raises(NewerVersion, match="the file is of version 2"):
        await replay(tmp_path)


async def test_a_history_of_other_code_is_named(tmp_path: Path) -> None:
    """The error has the workflow's id and the difference; the others are replayed, too."""
    events = json.loads(HISTORIES[0].to_json())
    scheduled = [event for event in events["events"] if "activityTaskScheduledEventAttributes" in event]
    scheduled[0]["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "other"
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(events))
    with pytest.raises(ReplayFailed, match=r"1 workflow runs cannot be replayed:\nchanged .*other") as caught:
        await replay(file, HISTORIES[1])
    assert len(caught.value.problems) == 1


async def test_a_teams_own_workflows_are_replayed_from_the_server(stack: Stack) -> None:
    """`query` lists them; a change of their commands is found."""
    queue = uuid.uuid4().hex
    client = stack.clew.temporal
    async with Worker(client, task_queue=queue, workflows=[Billing]):
        await client.execute_workflow(Billing.run, id=queue, task_queue=queue)
    query = f"WorkflowId = '{queue}'"

    async def listed() -> bool:
        return [run async for run in client.list_workflows(query)] != []

    await wait_until(listed)
    assert await replay(client=stack.clew, query=query, workflows=[Billing]) == 1
    with pytest.raises(ReplayFailed, match=queue):
        await replay(client=client, query=query, workflows=[ChangedBilling])


async def test_nothing_to_replay_is_an_error(tmp_path: Path) -> None:
    """A check of nothing must not pass."""
    with pytest.raises(ValueError, match="no workflow run to replay"):
        await replay()
    with pytest.raises(ValueError, match="a query needs a client"):
        await replay(query="WorkflowType = 'AgentSession'")
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    with pytest.raises(FileDamaged, match=r"notes.txt holds no event history"):
        await replay(file)
