"""Make the screenshot of the report in `docs/looking.md`: a session with tools, lanes, a fork, subagents.

python -m docs.report_pictures    write docs/images/

It needs Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from clew import Agent, Clew, ContextPolicy, RequestFailed, Session
from clew.local import Reply, ToolCall
from clew.report.making import make_report
from clew.report.page_document import render_page
from docs.screenshots import CALLS, IMAGES, SETTLE, find_order, refund, researcher, run_stack
from docs.screenshots import reply as reply_to_scenes
from tests.support.browser import open_browser

LONG = "Tell me all about the delivery."
support = Agent(
    "support",
    model="openai:gpt-4o",
    system_prompt="You help the customers of a shop.",
    context_policy=ContextPolicy(max_input_tokens=1400, reserve_output_tokens=200, keep_last_turns=3),
    tools=[find_order, refund, researcher.as_tool()],
)
QUESTIONS = (
    "Where is my order 1042?",
    "It is a present. Can it be wrapped?",
    "Does the cup have a warranty?",
    "Is order 1042 the blue one?",
    "And what does the post cost?",
)
ANSWERS = {
    QUESTIONS[1]: "It has left the warehouse, so it cannot. A **gift card** can still be sent by mail.",
    QUESTIONS[2]: "Yes, the warranty is two years:\n\n| part | years |\n|---|---|\n| cup | 2 |\n| lid | 1 |",
    QUESTIONS[3]: "Yes, order 1042 has the blue cup.",
    QUESTIONS[4]: "Nothing: orders over 40 EUR are sent without charge.",
}


async def reply(body: dict[str, Any]) -> Reply:
    """Reply as the model of the scene."""
    question = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    if question.endswith(LONG) and not question.startswith("Translate"):
        return Reply("The parcel left the warehouse on Friday. " * 30, tokens_per_second=40)
    if body["messages"][-1]["role"] == "user" and question == QUESTIONS[3]:
        return Reply(tool_calls=(ToolCall("find_order", {"number": 1042}),))
    if question in ANSWERS or (question not in CALLS and not question.startswith("Translate")):
        return Reply(ANSWERS.get(question, "The customer asked for order 1042, which DHL brings on Tuesday."))
    return await reply_to_scenes(body)


async def play(clew: Clew) -> Session:
    """Play the scene."""
    session = await clew.open(
        "support-4711", agent="support", metadata={"user": "ada", "title": "Order 1042: a present"}
    )
    for question in QUESTIONS[:3]:
        await session.ask(question)
    await session.pin(1, op_id="keep the order")
    await session.ask("Compare my last two orders.")
    with suppress(RequestFailed):
        await session.ask("Translate the terms of sale.")
    request = await session.message(LONG)
    async for event in request.events():
        if event.type == "text":
            await session.cancel(reason="the customer has left")
            break
    with suppress(RequestFailed):
        await request.answer()
    await session.summarize()
    await session.switch_context("draft", op_id="draft")
    await session.ask(QUESTIONS[3])
    await session.switch_context("default", op_id="back")
    await session.fork(session_id="support-4711-b")
    await session.configure(model="openai:gpt-4o-mini")
    for question in QUESTIONS[3:]:
        await session.ask(question)
    return session


async def make_pictures() -> None:
    """Play the scene and take the screenshot."""
    async with run_stack(reply, support, researcher) as (_, clew), open_browser() as browser:
        session = await play(clew)
        entries = await session.entries()
        with tempfile.TemporaryDirectory() as folder:
            file, html = Path(folder, "report.html"), render_page(make_report(entries, made_at=entries[-1].at))
            await asyncio.to_thread(file.write_text, html, encoding="utf-8")
            page = await browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
            await page.goto(file.as_uri())
            await page.wait_for_timeout(SETTLE)
            await page.screenshot(path=IMAGES / "report.png")


if __name__ == "__main__":
    asyncio.run(make_pictures())
