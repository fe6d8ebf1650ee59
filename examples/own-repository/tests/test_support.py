"""The agent's promises, with a scripted model instead of a real one."""

import pytest
from support.agents import support
from support.tools import REFUNDS

from clew.testing import Reply, ToolCall


@pytest.fixture(scope="session")
def clew_agents():
    return [support]


async def test_a_refund_waits_for_a_person(clew_session, clew_stack):
    script = [
        Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 1234})]),
        Reply(tool_calls=[ToolCall("refund", {"order_id": 1234})]),
        "Your money is on its way.",
    ]
    session = await clew_session(script, agent="support")
    request = await session.message("My lamp arrived broken. It was order 1234.")
    call = await clew_stack.wait_for_approval(session)
    assert not REFUNDS
    await clew_stack.kill_worker()
    await clew_stack.restart_worker()
    await session.approve(call)
    assert await request.answer() == "Your money is on its way."
    assert list(REFUNDS.values()) == [4200]
    thread = await clew_stack.read(session)
    thread.expect_tools("lookup_order", "refund")


async def test_the_model_reads_of_an_unknown_order(clew_session):
    def script(request):
        if request.role == "tool":
            return f"I am sorry: {request.text}"
        return Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 7})])

    session = await clew_session(script, agent="support")
    assert "there is no order 7" in await session.ask("Where is order 7?")
