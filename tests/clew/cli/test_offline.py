"""The operators' commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Clew, Session
from clew.local import Reply
from tests.support import evaluated_agents
from tests.support.command_line import CommandResult, hide_worker_extra, run_clew
from tests.support.command_line import run_clew as command
from tests.support.rolling import make_id
from tests.support.scripts import answer_or_hang, leave_open_work
from tests.support.stack import Stack


@pytest.fixture(scope="module")
async def session(stack: Stack, clew: Clew) -> Session:
    """A session with an archive."""
    session = await clew.open(make_id(), model=stack.add_model(answer_or_hang), tools=["wait_for"])
    for turn in range(12):
        await session.ask(f"turn {turn}")
    return session


@pytest.mark.slow
async def test_an_audit_and_one_without_the_server(
    stack: Stack, folder: Path, session: Session, tmp_path: Path
) -> None:
    """Exit code 0 without differences; 1 with the object that differs; 2 if there is nothing to audit."""
    address, store = stack.server.address, {"CLEW_STORE": str(folder)}
    saved = tmp_path / "histories"
    audited = await command("audit", session.id, "--save", str(saved), "--json", address=address, **store)
    assert (audited.code, audited.json["clean"], audited.json["differences"]) == (0, True, [])
    path, original = corrupt(folder, session.id)
    audited_again = await command("audit", "--from-file", str(saved), **store)
    verified = await command("archive", "verify", session.id, **store)
    path.write_bytes(original)
    for ended in (audited_again, verified):
        assert ended.code == 1
        assert path.name in ended.out
    missing = await command("audit", "--from-file", str(tmp_path / "none"), **store)
    assert (missing.code, missing.err.partition(":")[0]) == (2, "misconfigured")


def corrupt(folder: Path, session_id: str) -> tuple[Path, bytes]:
    """Change a byte of a segment; return the file and its original content."""
    path = next(folder.glob(f"default/families/s-{session_id}/segments/*"))
    original = path.read_bytes()
    path.write_bytes(original.replace(b"turn 1", b"turn 2", 1))
    return path, original


async def test_a_thread_goes_through_a_pipe(stack: Stack, clew: Clew, folder: Path, session: Session) -> None:
    """`clew export | clew import` makes the session; an existing session is refused and unchanged."""
    address, store = stack.server.address, {"CLEW_STORE": str(folder), "CLEW_TASK_QUEUE": clew.task_queue}
    new = make_id()
    exported = await command("export", session.id, address=address, **store)
    assert exported.code == 0
    done = await command("import", "-", "--as", new, "--json", address=address, stdin=exported.out, **store)
    assert done.json == {"session_id": new, "entries": (await session.status()).rev}
    assert await clew.session(new).ask("and now?") == "I read 25"
    again = await command("import", "-", "--as", new, address=address, stdin=exported.out, **store)
    assert (again.code, again.err.partition(":")[0]) == (1, "thread_mismatch")


async def test_a_terminated_session_is_recovered(stack: Stack, clew: Clew, folder: Path) -> None:
    """The first `recover` repairs the session; the second one changes nothing."""
    address, store = stack.server.address, {"CLEW_STORE": str(folder)}
    session = await clew.open(make_id(), model=stack.add_model(answer_or_hang), tools=["wait_for"])
    await session.ask("hello")
    await leave_open_work(session)
    await clew.temporal.get_workflow_handle(session.id).terminate()
    done = await command("recover", session.id, address=address, **store)
    assert done.code == 0
    assert f"session {session.id} has been repaired and resumed" in done.out
    again = await command("recover", session.id, "--json", address=address, **store)
    assert (again.code, again.json["status"]) == (0, "running")
    assert (await session.ask("and now?")).startswith("I read")


@pytest.mark.slow
async def test_without_the_extra_worker_the_commands_say_what_to_install(tmp_path: Path) -> None:
    """One line that names the extra, and no traceback."""
    ended = await command("archive", "verify", "s", **hide_worker_extra(tmp_path))
    assert ended.code == 2
    assert "pip install 'clew[worker]'" in ended.err
    assert "Traceback" not in ended.err


@pytest.fixture(scope="module")
async def export(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a session of two turns."""
    folder = tmp_path_factory.mktemp("evaluated")
    session = await stack.open(lambda body: Reply(f"I read {len(body['messages'])}"))
    for text in ("one", "two"):
        await session.ask(text)
    file = folder / "session.jsonl"
    ended = await run_clew(
        "export", session.id, str(file), address=stack.server.address, CLEW_STORE=str(folder / "store")
    )
    assert ended.code == 0, ended.err
    return file


async def run_evaluate(stack: Stack, export: Path, *options: str) -> CommandResult:
    return await run_clew(
        *("evaluate", str(export), "--agents", evaluated_agents.__name__, *options),
        CLEW_PROVIDER_SCRIPTED_BASE_URL=stack.provider.base_url,
    )


async def test_the_replies_are_compared(stack: Stack, export: Path) -> None:
    """Each model call in a line where it is the same, in two where it differs; then the sums."""
    model = stack.add_model(
        lambda body: Reply("I read 1" if len(body["messages"]) == 2 else body["messages"][0]["content"])
    )
    ended = await run_evaluate(stack, export, "--agent", "terse", "--model", model)
    assert ended.code == 0, ended.err
    same, was, now, total, *_ = ended.out.splitlines()
    assert same.endswith("same: I read 1")
    assert (was.partition("  ")[2], now.partition("  ")[2]) == ("was: I read 3", "now: Be terse.")
    assert total == "2 model calls: 1 with the same text, 2 with the same tool calls, 0 without a reply"
    document = (await run_evaluate(stack, export, "--agent", "kind", "--model", model, "--json")).json
    assert (document["agent"], document["same_text"]) == ("kind", 1)


async def test_an_agent_or_a_model_that_is_not_there_is_refused(stack: Stack, export: Path) -> None:
    """One line names what is defined."""
    for options, problem in (
        (["--agent", "other"], "no agent 'other': the modules define terse, kind"),
        ([], "name an agent: the modules define terse, kind"),
        (["--agent", "kind", "--model", "absent:m"], "no provider 'absent' on this worker"),
    ):
        ended = await run_evaluate(stack, export, *options)
        assert ended.code == 1
        assert problem in ended.err
