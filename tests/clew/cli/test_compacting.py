"""The commands for summaries and pins: effects, receipts, refusals."""

from __future__ import annotations

from clew import Session
from tests.support.command_line import run_clew
from tests.support.stack import Stack


async def texts(session: Session) -> list[str]:
    return [message["content"] for message in (await session.context()).messages]


async def test_a_session_is_summed_up_and_expanded(stack: Stack) -> None:
    """The receipt names the summary's entry; `expand` brings the messages back."""
    address = stack.server.address
    session = await stack.open("It is so.")
    for number in range(3):
        await session.ask(f"question {number}")
    before = await texts(session)
    receipt = await run_clew("summarize", session.id, "--to-seq", "2", "--json", address=address)
    assert (receipt.code, receipt.err) == (0, "")
    (entry,) = await session.entries(kind="summary")
    assert receipt.json == {"seq": entry.seq, "from_seq": 0, "to_seq": 2, "tokens": entry.tokens}
    assert (await texts(session))[0] == "Summary of earlier conversation:\nIt is so."
    nothing = await run_clew("summarize", session.id, "--json", address=address)
    assert (nothing.code, nothing.json["error"]["type"]) == (1, "nothing_to_summarize")
    expanded = await run_clew("expand", session.id, "--op-id", "e-1", address=address)
    assert (expanded.code, expanded.out.startswith("operation e-1 is applied")) == (0, True)
    assert await texts(session) == before


async def test_messages_are_pinned_and_a_lane_is_compacted(stack: Stack) -> None:
    """Pinned messages stay before the summary until they are unpinned."""
    address = stack.server.address
    session = await stack.open("It is so.", on_busy="queue")
    for number in range(3):
        await session.ask(f"question {number}")
    first = str((await session.transcript())[0]["seq"])
    assert (await run_clew("pin", session.id, first, "--op-id", "p-1", address=address)).code == 0
    receipt = await run_clew("compact", session.id, "--op-id", "c-1", "--to-seq", "2", "--json", address=address)
    assert receipt.json == {"op_id": "c-1", "status": "deferred"}
    await session.ask("and now?")
    assert (await texts(session))[:2] == ["question 0", "Summary of earlier conversation:\nIt is so."]
    assert (await run_clew("unpin", session.id, first, "--op-id", "p-2", address=address)).code == 0
    assert (await texts(session))[0] == "Summary of earlier conversation:\nIt is so."
    refused = await run_clew("pin", session.id, "999", "--op-id", "p-3", "--json", address=address)
    assert refused.json["error"]["type"] == "invalid_operation"
