"""The columns of the matrix: each scenario is a session that is played on the servers of a dialect.

To add one, write it and add it to `SCENARIOS`. It says what the model does by `Cell.play`, and what the user does by
the session. What a server refuses or loses fails the cell by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from clew import Clew, ContextPolicy, File, Image, Session
from clew.content import AnyContent, Media
from clew.session.request import Request
from clew_audit.differences import Calls, verify_calls
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.payloads import Recipe
from clew_workflows.thread.thread import Thread
from tests.providers import matrix, mcp_tools
from tests.providers.media_rules import list_received
from tests.providers.strict_server import Call, Dialect, Exchange, Fault, Step, StrictServer, Turn
from tests.support.media import make_pdf, make_png
from tests.support.toolbox import get_gate

POLICY = ContextPolicy(max_input_tokens=100_000, reserve_output_tokens=4000, keep_last_turns=10)
_TYPES = {"image": "image/png", "file": "application/pdf"}
"""The types of the images and files of the scenarios."""
SECONDS = 30.0
"""The most time of a request."""


@dataclass
class Cell:
    """A dialect in a scenario.

    Attributes:
        clew: The client.
        servers: The servers of all dialects.
        dialect: The row.
        partner: The dialect of the fallback, in scenarios that have one.
    """

    clew: Clew
    servers: Mapping[str, StrictServer]
    dialect: Dialect
    partner: Dialect | None = None
    _sessions: list[Session] = field(default_factory=list)
    _usage: list[RequestOutcome] = field(default_factory=list)

    @property
    def server(self) -> StrictServer:
        """The dialect's server."""
        return self.servers[self.dialect.name]

    def play(self, *steps: Step) -> None:
        """Play these steps at the dialect's server."""
        self.server.play(*steps)

    async def open(self, **config: Any) -> Session:
        """Open a session with the dialect's model."""
        options: dict[str, Any] = {
            "model": self.dialect.full_model,
            "context_policy": POLICY,
            "request_timeout_seconds": int(SECONDS),
        }
        if self.dialect.thinking_options:
            options["model_options"] = dict(self.dialect.thinking_options)
        return self.adopt(await self.clew.open(f"matrix-{uuid.uuid4().hex}", **options | config))

    def adopt(self, session: Session) -> Session:
        """Take a session as one of the cell's: its requests are checked, and it is ended with the cell."""
        self._sessions.append(session)
        return session

    async def ask(self, session: Session, content: AnyContent, **options: Any) -> RequestOutcome:
        """Send a message and wait until its request is completed."""
        outcome = await self.wait(await session.message(content, **options))
        assert outcome.status == "completed", self.describe(outcome)
        return outcome

    async def wait(self, request: Request[Any]) -> RequestOutcome:
        """Wait for a request's end, or for the first verdict of a server."""
        outcome: RequestOutcome = await self.watch(request.result())
        self._usage.append(outcome)
        return outcome

    async def watch(self, work: Awaitable[Any]) -> Any:
        """Wait for work of a session, or for the first verdict of a server.

        Raises:
            AssertionError: A server has refused or lost something.
            TimeoutError: It takes too long.
        """
        task = asyncio.ensure_future(work)
        spoiled = [asyncio.ensure_future(server.spoiled.wait()) for server in self.active]
        try:
            async with asyncio.timeout(SECONDS):
                await asyncio.wait([task, *spoiled], return_when=asyncio.FIRST_COMPLETED)
            self.check_verdicts()
            return await task
        finally:
            for one in (task, *spoiled):
                one.cancel()

    @property
    def active(self) -> list[StrictServer]:
        """The servers of the cell."""
        names = [self.dialect.name, *([self.partner.name] if self.partner else [])]
        return [self.servers[name] for name in names]

    def check_verdicts(self) -> None:
        """Check that no server has refused or lost anything."""
        problems = [f"{server.dialect.name}: {line}" for server in self.active for line in server.verdicts]
        assert not problems, "\n  ".join(problems)

    def describe(self, outcome: RequestOutcome) -> str:
        """Describe an outcome that was not expected."""
        return f"{self.dialect.name}: {outcome.status}, {outcome.termination_reason}, {outcome.error}"

    def check(self, *, exact_usage: bool) -> None:
        """Check the servers' verdicts, that their scripts were played, and that the usage was counted."""
        for server in self.active:
            server.check()
        if not self._usage:
            return
        outcomes = [outcome.usage for outcome in self._usage]
        counted = (sum(usage.input_tokens for usage in outcomes), sum(usage.output_tokens for usage in outcomes))
        billed = [billing for server in self.active for billing in server.billed]
        expected = (sum(one.input_tokens for one in billed), sum(one.output_tokens for one in billed))
        name = self.dialect.name
        if exact_usage and all(server.dialect.reports_usage for server in self.active):
            assert counted == expected, f"{name}: the usage (input, output) is {counted}, billed were {expected}"
        elif billed:
            assert min(counted) > 0, f"{name}: the usage is {counted}, billed were {expected}"

    async def check_requests(self) -> None:
        """Check that each recipe names a body that a server has received, and that the thread gives it again."""
        received = {exchange.digest for server in self.active for exchange in server.exchanges}
        for session in self._sessions:
            entries = await session.entries()
            requests = [recipe.request for entry in entries if (recipe := entry.recipe or entry.summary_recipe)]
            assert {request.digest for request in requests if request} <= received
            calls = Calls()
            differences = [one async for one in verify_calls(Thread(entries), calls, session.read_blob)]
            assert not differences, "\n  ".join(map(str, differences))
            assert calls.sent == len(requests)

    async def end(self) -> None:
        """End the sessions at once, and all their retries."""
        for session in self._sessions:
            await self.clew.temporal.get_workflow_handle(session.id).terminate()


@dataclass(frozen=True)
class Scenario:
    """A column.

    Attributes:
        play: Plays it.
        exact_usage: Whether the usage must be what was billed; else it must not be 0.
        is_fast: Whether the fast suite has it, for a dialect of each format.
        waits: Whether it waits for retries; such a column is played for all dialects at the same time.
    """

    play: Callable[[Cell], Awaitable[None]]
    exact_usage: bool = True
    is_fast: bool = False
    waits: bool = False


def list_tools(body: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """List the tools of a request in any format: the name, the description and the schema."""
    tools = []
    for tool in body.get("tools") or body.get("toolConfig", {}).get("tools") or ():
        for spec in tool.get("functionDeclarations", [tool.get("function") or tool.get("toolSpec") or tool]):
            # Without a schema a tool has no arguments.
            names = ("parameters", "input_schema", "parametersJsonSchema", "inputSchema")
            schema: dict[str, Any] = next(filter(None, map(spec.get, names)), {"type": "object"})
            # A tool of the provider's own, and a cache point, have no name.
            if "name" in spec:
                tools.append((spec["name"], spec.get("description") or "", schema.get("json", schema)))
    return tools


def find_tool(exchange: Exchange, beginning: str) -> tuple[str, dict[str, Any]]:
    """Find a tool by the beginning of its description: its name and its schema as the server has them."""
    for name, description, schema in list_tools(exchange.body):
        if description.startswith(beginning):
            return name, schema
    raise AssertionError(f"no tool of the request is described as {beginning!r}")


def fill(schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """Make a value that a schema allows, as a model would: with all properties."""
    if not isinstance(schema, dict):
        return "anything"
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/") if schema["$ref"] != "#" else ():
            target = target[key]
        return fill(target, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    # A model reads what a schema could not say.
    if said := re.search(r"\benum: (\[.*?\])", schema.get("description", "")):
        return json.loads(said[1])[0]
    if schema.get("properties"):
        return {name: fill(part, root) for name, part in schema["properties"].items()}
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            branches = [part for part in schema[key] if part.get("type") != "null"]
            return fill({**{k: v for k, v in schema.items() if k != key}, **branches[0]}, root)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return [fill(schema["items"], root)] if schema.get("items") else []
    return {"integer": 7, "number": 7, "boolean": True, "object": {}, "null": None}.get(kind, "text")


def call_add(a: int, b: int) -> Call:
    """Make a call of the tool `add`."""
    return Call("add", {"a": a, "b": b})


async def read_results(session: Session) -> list[tuple[str, str]]:
    """Read the tool calls of a session: the tool's name and the text of its result, in the order of the calls."""
    payloads = [entry.payload for entry in await session.entries(kind="ai_message")]
    contents = {payload["tool_call_id"]: str(payload["content"]) for payload in payloads if payload["role"] == "tool"}
    calls = [call for payload in payloads for call in payload.get("tool_calls") or ()]
    return [(call["name"], contents.get(call["id"], "no result")) for call in calls]


async def read_texts(session: Session) -> list[str]:
    """Read the texts of the results, in the order of the calls."""
    return [text for _, text in await read_results(session)]


async def read_fitting(session: Session) -> Mapping[str, Any]:
    """Read what the newest model call had otherwise than its context, as its recipe says."""
    payloads = [entry.payload for entry in await session.entries(kind="ai_message")]
    fitting: Mapping[str, Any] = [one["recipe"] for one in payloads if "recipe" in one][-1].get("fitting", {})
    return fitting


def assert_has(exchange: Exchange, *texts: str) -> None:
    """Assert that a request has these texts; its messages may be merged."""
    body = json.dumps(exchange.body, ensure_ascii=False)
    for text in texts:
        assert text in body, f"the request has no {text!r}: {body[:2000]}"


# Turns and tools


async def play_plain_turns(cell: Cell) -> None:
    """Two turns with a system prompt."""
    cell.play(Turn("Hello. I am well.", thinks=True), Turn("It is four."))
    session = await cell.open(system_prompt="You are brief.")
    await cell.ask(session, "How are you?")
    await cell.ask(session, "What is two and two?")
    assert_has(cell.server.exchanges[-1], "You are brief.", "How are you?", "Hello. I am well.", "two and two")


async def play_tool_loop(cell: Cell) -> None:
    """Three rounds of tools with thinking, and a message after the run: what must come back still does."""
    cell.play(
        Turn("First I add.", (call_add(1, 2),), thinks=True),
        Turn("", (call_add(3, 3),), thinks=True),
        Turn("", (call_add(6, 4),), thinks=True),
        Turn("It is ten.", thinks=True),
        Turn("", (call_add(10, 1),), thinks=True),
        Turn("It is eleven."),
    )
    session = await cell.open(system_prompt="You add.", tools=["add"])
    await cell.ask(session, "Add up to ten.")
    await cell.ask(session, "And one.")
    assert await read_texts(session) == ["3", "6", "10", "11"]


async def play_parallel_tools(cell: Cell) -> None:
    """Parallel calls keep their arguments, and each its result."""
    cell.play(
        Turn("", (call_add(1, 2), call_add(30, 40), Call("repeat", {"text": "ab", "count": 2})), thinks=True),
        Turn("", (call_add(5, 6), Call("repeat", {"text": "x", "count": 1})), thinks=True),
        Turn("Done."),
        Turn("Again."),
    )
    session = await cell.open(tools=["add", "repeat"])
    await cell.ask(session, "Do it all at once.")
    await cell.ask(session, "Thanks.")
    assert await read_texts(session) == ["3", "70", "abab", "11", "x"]


async def play_steer_at_step(cell: Cell) -> None:
    """A user's message right after a tool's result."""
    gate = f"matrix-{uuid.uuid4().hex}"
    cell.play(
        Turn("", (Call("tell_and_wait", {"gate": gate}),), thinks=True),
        Turn("", (call_add(1, 1),), thinks=True),
        Turn("As you like."),
        Turn("Bye."),
    )
    session = await cell.open(tools=["tell_and_wait", "add"])
    request = await session.message("Begin.")
    await cell.watch(get_gate(f"{gate}-started").wait())
    await session.steer("Rather in French.", at="step")
    get_gate(gate).set()
    outcome = await cell.wait(request)
    assert outcome.status == "completed", cell.describe(outcome)
    assert_has(cell.server.exchanges[1], "Rather in French.")
    await cell.ask(session, "Bye.")


async def play_cancel_in_tool(cell: Cell) -> None:
    """A run is cancelled in a tool, and the next message is answered."""
    gate = f"matrix-{uuid.uuid4().hex}"
    cell.play(
        Turn("", (Call("note_cancel", {"gate": gate}), call_add(1, 2)), thinks=True),
        Turn("", (call_add(1, 1),), thinks=True),
        Turn("I have stopped."),
    )
    session = await cell.open(tools=["note_cancel", "add"])
    request = await session.message("Begin.")
    await cell.watch(get_gate(f"{gate}-started").wait())
    await session.cancel()
    assert (await cell.wait(request)).status == "cancelled"
    await cell.ask(session, "What now?")


async def play_failed_run(cell: Cell) -> None:
    """Two runs fail, and the next message is answered: several messages of the user in a row."""
    # A refusal that no item of the request can be the reason of.
    broken = Turn(fault=Fault("before", status=403))
    cell.play(broken, broken, Turn("", (call_add(1, 1),), thinks=True), Turn("Here I am."))
    session = await cell.open(system_prompt="You are patient.", tools=["add"])
    for text in ("Are you there?", "Really?"):
        outcome = await cell.wait(await session.message(text))
        assert outcome.status == "failed", cell.describe(outcome)
    await cell.ask(session, "Please!")
    assert_has(cell.server.exchanges[-1], "Are you there?", "Really?", "Please!")
    body = cell.server.last
    messages = body.get("messages") or body.get("input") or body["contents"]
    users = [one.get("content") or one["parts"] for one in messages if one.get("role") == "user"]
    if len(users) < 3 and isinstance(users[-1], str):
        # In the Messages API and in Gemini's they are parts of one message.
        assert (await read_fitting(session)).get("merged"), "messages were merged, and no recipe says so"


def list_media() -> list[Media]:
    """List an image and a PDF file, which a user sends."""
    return [Image.from_bytes(make_png(), name="square.png"), File.from_bytes(make_pdf(), name="two pages.pdf")]


def assert_has_media(
    dialect: Dialect,
    exchange: Exchange,
    recipes: Sequence[Recipe],
    sent: Sequence[Media],
    in_results: Sequence[Media] = (),
) -> None:
    """Assert that a request has what the model takes, to the byte, in order and in its place; markers of the rest.

    Args:
        dialect: The row.
        exchange: The request.
        recipes: The recipes of the session.
        sent: What users have sent.
        in_results: What tools have answered after that.
    """
    expected: list[tuple[str, bool]] = []
    changes: dict[str, str] = {}
    for media, is_result in (*((one, False) for one in sent), *((one, True) for one in in_results)):
        digest = hashlib.sha256(media.read()).hexdigest()
        if _TYPES[media.kind] not in dialect.media:
            changes[digest[:12]] = "shown as a marker"
            assert_has(exchange, f": {media.name}, ")
            continue
        expected.append((digest, is_result and dialect.media_in_results))
        if is_result and not dialect.media_in_results:
            changes[digest[:12]] = "follows in a user's message"
            line = f"From the result of show_report, call {{}}: [{media.kind}: {media.name}"
            assert_follows(exchange, matrix.REPORT, *line.split("{}"))
    received = list_received(exchange.body)
    assert [(one.digest, one.in_result) for one in received] == expected, dialect.name
    recipe = next(one for one in recipes if one.request and one.request.digest == exchange.digest)
    shown = recipe.fitting.media if recipe.fitting else {}
    assert {digest: words.partition(":")[0] for digest, words in shown.items()} == changes, shown


def assert_follows(exchange: Exchange, *texts: str) -> None:
    """Assert that a request has these texts in this order."""
    body, place = json.dumps(exchange.body, ensure_ascii=False), 0
    for text in texts:
        place = body.find(text, place)
        assert place >= 0, f"the request has no {text!r} in its place: {body[:2000]}"


async def list_recipes(session: Session) -> list[Recipe]:
    """List the recipes of a session's model calls."""
    return [entry.recipe for entry in await session.entries(kind="ai_message") if entry.recipe]


async def play_media(cell: Cell) -> None:
    """A message with an image and a PDF, a round of tools, and a turn after them. Others get markers."""
    cell.play(Turn("A square.", thinks=True), Turn("", (call_add(1, 2),), thinks=True), Turn("Three."))
    session = await cell.open(system_prompt="You look.", tools=["add"])
    await cell.ask(session, ["What is this?", *list_media(), "Both, please."])
    await cell.ask(session, "How many pages and squares?")
    recipes = await list_recipes(session)
    for exchange in cell.server.exchanges:
        assert_has(exchange, "What is this?", "Both, please.")
        assert_has_media(cell.dialect, exchange, recipes, list_media())
    assert len(cell.server.exchanges) == 3


async def play_media_of_tools(cell: Cell) -> None:
    """A tool answers an image and a PDF, beside another's result; the server has them in it, or behind it."""
    cell.play(
        Turn("", (Call("show_report", {}), call_add(1, 2)), thinks=True),
        Turn("", (call_add(3, 4),), thinks=True),
        Turn("It rises."),
        Turn("Three pages."),
    )
    session = await cell.open(system_prompt="You read.", tools=["show_report", "add"])
    await cell.ask(session, "What does the report say?")
    await cell.ask(session, "How long is it?")
    recipes = await list_recipes(session)
    for exchange in cell.server.exchanges[1:]:
        assert_has(exchange, matrix.REPORT)
        assert_has_media(cell.dialect, exchange, recipes, [], matrix.list_report())
    assert len(cell.server.exchanges) == 4


async def play_summary(cell: Cell) -> None:
    """A system prompt and a summary: a program's two system messages."""
    cell.play(
        Turn("", (call_add(1, 1),), thinks=True),
        Turn("Paris."),
        Turn("Rome."),
        Turn("They asked for two capitals."),
        Turn("Berlin."),
    )
    policy = POLICY.model_copy(update={"keep_last_turns": 1})
    session = await cell.open(system_prompt="You know capitals.", tools=["add"], context_policy=policy)
    await cell.ask(session, "France?")
    await cell.ask(session, "Italy?")
    await cell.watch(session.summarize())
    await cell.ask(session, "Germany?")
    assert_has(cell.server.exchanges[-1], "You know capitals.", "They asked for two capitals.", "Germany?")


async def play_assistant_first(cell: Cell) -> None:
    """A context that begins with an assistant's message, and one that has nothing else."""
    cell.play(Turn("Yes."), Turn("", (call_add(1, 1),), thinks=True), Turn("No."))
    session = await cell.open(tools=["add"], system_prompt="You wait.")
    await session.replace_context([{"role": "assistant", "content": "I am waiting."}], op_id="one")
    await cell.ask(session, "Are you?")
    messages = [
        {"role": "assistant", "content": "I asked first."},
        {"role": "assistant", "content": "And again."},
        {"role": "user", "content": "I know."},
    ]
    await session.replace_context(messages, op_id="two")
    await cell.ask(session, "And now?")
    assert_has(cell.server.exchanges[-1], "I asked first.", "And again.", "I know.", "And now?")


async def play_tools_gone(cell: Cell) -> None:
    """A session loses its tools after it has called one."""
    cell.play(Turn("", (call_add(1, 2),), thinks=True), Turn("Three."), Turn("I cannot add any more."))
    session = await cell.open(tools=["add"])
    await cell.ask(session, "Add.")
    await session.configure(tools=[])
    await cell.ask(session, "Add again.")


# Fallbacks


async def play_fallback(cell: Cell) -> None:
    """A run falls back to another dialect in the middle of a tool loop; the next run is the first model's again."""
    assert cell.partner
    partner = cell.servers[cell.partner.name]
    cell.play(
        Turn("", (call_add(1, 2), call_add(2, 2)), thinks=True),
        Turn("", (call_add(3, 4),), thinks=True),
        Turn(fault=Fault("before", status=503)),
        Turn("", (call_add(20, 1),), thinks=True),
        Turn("I am back."),
    )
    cell.server.retry_after = 60
    partner.play(Turn("", (call_add(7, 7),), thinks=True), Turn("It is fourteen."))
    session = await cell.open(tools=["add"], fallbacks=[cell.partner.full_model], system_prompt="You add.")
    outcome = await cell.ask(session, ["Add up.", *list_media()])
    assert outcome.fallback == cell.partner.full_model
    cell.server.retry_after = 0
    await cell.ask(session, "And one.")
    assert await read_texts(session) == ["3", "4", "7", "14", "21"]
    recipes = await list_recipes(session)
    assert_has_media(cell.partner, partner.exchanges[-1], recipes, list_media())
    assert_has_media(cell.dialect, cell.server.exchanges[-1], recipes, list_media())


async def play_fork(cell: Cell) -> None:
    """A fork goes on with another dialect's model, which has the images of the message and of the tool's result."""
    assert cell.partner
    partner = cell.servers[cell.partner.name]
    cell.play(
        Turn("", (Call("show_report", {}),), thinks=True),
        Turn("It rises.", thinks=True),
        Turn("I said so."),
    )
    partner.play(Turn("", (call_add(2, 3),), thinks=True), Turn("Five pages."))
    session = await cell.open(tools=["show_report", "add"], system_prompt="You read.")
    await cell.ask(session, ["Compare.", *list_media()])
    fork = cell.adopt(await session.fork())
    await fork.configure(model=cell.partner.full_model)
    await cell.ask(fork, "How many pages?")
    await cell.ask(session, "Are you sure?")
    for one, row, exchanges in (
        (session, cell.dialect, cell.server.exchanges[1:]),
        (fork, cell.partner, partner.exchanges),
    ):
        recipes = await list_recipes(one)
        for exchange in exchanges:
            assert_has_media(row, exchange, recipes, list_media(), matrix.list_report())


# Answers


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
OPEN_CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "people": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["old", "large"]}},
    },
    "required": ["city"],
}


async def play_structured_answer(cell: Cell) -> None:
    """A structured answer after a tool, and one in a fence with words around it; with two kinds of schema."""
    value = '{"city": "Rome", "people": 3}'
    cell.play(
        Turn("", (call_add(1, 2),), thinks=True),
        Turn(value),
        Turn(f"Here it is:\n\n```json\n{value}\n```"),
    )
    session = await cell.open(tools=["add"])
    await cell.ask(session, "Which city?", output_schema=CITY)
    outcome = await cell.ask(session, "In a fence?", output_schema=OPEN_CITY)
    assert (outcome.termination_reason, outcome.iterations) == ("final_answer", 1), cell.describe(outcome)


async def play_cut_answer(cell: Cell) -> None:
    """An answer that the token limit cuts is kept and explained, and the session goes on."""
    cell.play(Turn("Once upon a", ending="length", thinks=True), Turn("The end."))
    session = await cell.open()
    outcome = await cell.ask(session, "Tell a story.")
    assert outcome.termination_reason == "max_output_tokens"
    await cell.ask(session, "Go on.")


async def play_cut_call(cell: Cell) -> None:
    """A call that the token limit cuts does not run, also not with its defaults; the model learns why."""
    steps = [Turn("", (Call("erase", '{"scope": "tm'),), ending="length", thinks=True)]
    if cell.dialect.wire.cut_reason != "tool_calls":
        # Where the reason says nothing, an empty text is that of a call without arguments.
        steps.append(Turn("", (Call("erase", ""),), ending="length", thinks=True))
    cell.play(*steps, Turn("I am sorry."), Turn("Fine."))
    session = await cell.open(tools=["erase"])
    request = await session.message("Tidy up.")
    outcome = await cell.wait(request)
    assert not matrix.runs.get(session.id), cell.dialect.name
    assert outcome.status == "completed", cell.describe(outcome)
    await cell.ask(session, "Good.")
    assert not matrix.runs.get(session.id)


async def play_odd_replies(cell: Cell) -> None:
    """White space before a call, a result without text, and a call of a tool that there is not."""
    cell.play(
        Turn("\n\n", (Call("repeat", {"text": "x", "count": 0}),), thinks=True),
        Turn("", (Call("multi_tool_use.parallel", {"uses": []}), call_add(1, 1)), thinks=True),
        Turn("Done."),
        Turn("Bye."),
    )
    session = await cell.open(tools=["add", "repeat"])
    await cell.ask(session, "Go.")
    await cell.ask(session, "Bye.")
    first, _, last = await read_texts(session)
    assert (first, last) == ("", "2")


async def play_empty_replies(cell: Cell) -> None:
    """Replies without anything are repeated, and each of them is paid for."""
    cell.play(Turn(thinks=True), Turn(thinks=True), Turn("Here I am."))
    await cell.ask(await cell.open(), "Hello?")


# Tools that are hard to fit


async def play_hard_tools(cell: Cell) -> None:
    """Every tool is offered and can be called, and its server reads the arguments in its own form."""

    def call_all(exchange: Exchange) -> Turn:
        found = {name: find_tool(exchange, f"{name}:") for name in mcp_tools.HARD}
        return Turn("", tuple(Call(name, fill(schema)) for name, schema in found.values()), thinks=True)

    def call_render(exchange: Exchange) -> Turn:
        name, schema = find_tool(exchange, "Renders a scene")
        return Turn("", (Call(name, fill(schema)),), thinks=True)

    cell.play(call_all, call_render, Turn("All of them work."), Turn("Still."))
    session = await cell.open(tools=["mcp:hard/*", "3d_render"])
    await cell.ask(session, "Try them.")
    results = dict(await read_results(session))
    assert results["3d_render"] == "rendered at 7"
    for name, schema in mcp_tools.HARD.items():
        result = results[f"mcp__hard__{name}"]
        try:
            jsonschema_rs.validate(schema, json.loads(result))
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise AssertionError(f"{cell.dialect.name}: the tool {name} answered {result}: {error}") from None
    await cell.ask(session, "Again?")


async def play_many_tools(cell: Cell) -> None:
    """A session with 150 tools works, with as many of them as the server takes."""

    def call_one(exchange: Exchange) -> Turn:
        name, schema = find_tool(exchange, "tool_003:")
        return Turn("", (Call(name, fill(schema)),), thinks=True)

    cell.play(call_one, Turn("So many."))
    session = await cell.open(tools=["mcp:many/*"])
    await cell.ask(session, "Try one.")
    assert await read_texts(session) == ['{"a": 7}']
    offered = {description for _, description, _ in list_tools(cell.server.last)}
    missing = {f"mcp__many__{name}" for name in mcp_tools.MANY if mcp_tools.describe(name) not in offered}
    left_out = (await read_fitting(session)).get("tools_left_out", {})
    assert missing <= set(left_out), "tools were left out, and no recipe names them"


# Tools of the provider's own


async def play_provider_tools(cell: Cell) -> None:
    """The provider's own searches are recorded with their sources, and go back with the calls of other tools."""
    cell.play(
        Turn("It rains in Paris.", thinks=True, searches=("weather in Paris",)),
        Turn("I add.", (call_add(1, 2),), thinks=True, searches=("one", "two")),
        Turn("Three."),
        *([Turn("", searches=("late",), ending="pause"), Turn("Now I know.")] if cell.dialect.pauses else ()),
        Turn("Bye."),
    )
    session = await cell.open(tools=["add"], provider_tools=["web_search"])
    await cell.ask(session, "Does it rain?")
    await cell.ask(session, "Add.")
    if cell.dialect.pauses:
        outcome = await cell.ask(session, "Take your time.")
        assert outcome.iterations == 2, cell.describe(outcome)
    await cell.ask(session, "Bye.")
    assert await read_texts(session) == ["3"]
    if not cell.dialect.runs_searches:
        assert "web_search" in (await read_fitting(session)).get("tools_left_out", {})
        return
    payloads = [entry.payload for entry in await session.entries(kind="ai_message")]
    replies = [payload for payload in payloads if payload["role"] == "assistant"]
    queries = [[call.get("input") for call in reply.get("provider_calls") or ()] for reply in replies]
    paused = [[], ["late"]] if cell.dialect.pauses else []
    assert queries == [["weather in Paris"], ["one", "two"], [], *paused, []]
    source = {"url": "https://example.com/1", "title": "Example 1"}
    assert [one["url"] for one in replies[0]["provider_calls"][0]["sources"]] == [source["url"]]
    (citation,) = replies[0]["citations"]
    assert (citation["url"], citation["title"]) == (source["url"], source["title"])
    assert replies[0]["content"][citation["start"] : citation["end"]] == "It rains in Paris."


# Options and faults


async def play_options(cell: Cell) -> None:
    """Options that the server does not take are left out, or fitted."""
    levels = ("none", "minimal", "medium", "high", "xhigh", "max")
    cell.play(
        Turn("Yes.", thinks=True),
        Turn("", (call_add(1, 2),), thinks=True),
        Turn("Three."),
        Turn("Greedy."),
        *(Turn(level) for level in levels),
        Turn("", (call_add(2, 2),)),
        Turn("Four."),
    )
    options = {"temperature": 1.3, "top_p": 0.9, "max_output_tokens": 3000, "stop": ["END", "STOP"], "seed": 7}
    session = await cell.open(model_options=options, tools=["add"])
    await cell.ask(session, "Ready?")
    await cell.ask(session, "Add.", model_options={"tool_choice": "required", "reasoning_effort": "low"})
    greedy = {"temperature": 0, "top_p": 0.9, "verbosity": "low", "service_tier": "auto"}
    await cell.ask(session, "Be greedy.", model_options=greedy)
    await session.configure(tools=[])
    for level in levels:
        await cell.ask(session, f"Think {level}.", model_options={"reasoning_effort": level})
    await session.configure(tools=["add"])
    await cell.ask(session, "Add without thinking.", model_options={"reasoning_effort": "none"})


async def play_faults(cell: Cell) -> None:
    """A server fails before, in and after its stream; each message is answered once."""
    cell.play(
        Turn(fault=Fault("before", status=503)),
        Turn("One."),
        Turn("Two, and mo", thinks=True, fault=Fault("inside")),
        Turn("Two."),
        Turn("Three.", fault=Fault("after")),
    )
    session = await cell.open()
    for text in ("One?", "Two?", "Three?"):
        await cell.ask(session, text)
    answers = [e.payload["content"] for e in await session.entries(kind="ai_message") if e.payload["role"] != "user"]
    assert answers == ["One.", "Two.", "Three."]


async def play_break(cell: Cell) -> None:
    """A connection breaks in the middle of a tool call: the call is not run, and the attempt is repeated."""
    cell.play(
        Turn("", (Call("erase", {"scope": "tmp"}),), thinks=True, fault=Fault("cut")),
        Turn("I have not erased anything."),
    )
    session = await cell.open(tools=["erase"])
    await cell.ask(session, "Tidy up.")
    assert not matrix.runs.get(session.id)


SCENARIOS: Mapping[str, Scenario] = {
    "plain turns": Scenario(play_plain_turns),
    "tool loop": Scenario(play_tool_loop, is_fast=True),
    "parallel tools": Scenario(play_parallel_tools),
    "steer at a step": Scenario(play_steer_at_step),
    "cancel in a tool": Scenario(play_cancel_in_tool, exact_usage=False),
    "failed runs": Scenario(play_failed_run),
    "image and PDF": Scenario(play_media),
    "image in a result": Scenario(play_media_of_tools),
    "summary": Scenario(play_summary, exact_usage=False),
    "assistant first": Scenario(play_assistant_first),
    "tools gone": Scenario(play_tools_gone),
    "structured answer": Scenario(play_structured_answer),
    "cut answer": Scenario(play_cut_answer),
    "cut call": Scenario(play_cut_call, exact_usage=False),
    "odd replies": Scenario(play_odd_replies),
    "empty replies": Scenario(play_empty_replies, waits=True),
    "hard tools": Scenario(play_hard_tools),
    "many tools": Scenario(play_many_tools),
    "provider tools": Scenario(play_provider_tools),
    "options": Scenario(play_options),
    "faults": Scenario(play_faults, exact_usage=False, waits=True),
    "break": Scenario(play_break, exact_usage=False, waits=True),
}
"""The columns, but that of the fallbacks."""

FALLBACK = Scenario(play_fallback, exact_usage=False)
"""The column of the fallbacks, which has two dialects in a cell."""
FORK = Scenario(play_fork)
"""The column of the forks, which has two dialects in a cell."""


def iterate_pairs(dialects: Mapping[str, Dialect]) -> Iterator[tuple[Dialect, Dialect]]:
    """List pairs of dialects: each with a strict one, so that sessions go on at each of those."""
    strict = (
        "deepseek",
        "gemini",
        "mistral",
        "anthropic",
        "bedrock",
        "openrouter",
        "unknown",
        "google",
        "openai-responses",
    )
    for number, dialect in enumerate(dialects.values()):
        others = [name for name in strict if name != dialect.name]
        yield dialect, dialects[others[number % len(others)]]
