"""Scripts: the replies of a model in a test."""

from __future__ import annotations

import asyncio
import inspect
import threading
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from clew.agents import Agent, AgentTool
from clew.local import Reply, ScriptedModel
from clew.tools import ToolDefinition
from clew_activities.model.model_table import OwnModels, TakenMedia
from clew_activities.providers import Providers, load_providers
from clew_workflows.contract.content import MediaKind, MediaSort

PROVIDER = "scripted"
"""The provider of the scripted models' names: `scripted:…`."""


AGENTS = "agent"
"""The names of the models that replace agents' begin with it: `agent/support/gpt-4o`."""


class ScriptFailed(AssertionError):
    """A model was called that has no script, or the script of an agent raised or had no reply left."""


class Stuck(AssertionError):
    """A test waited in vain. The message says for what, and shows the thread."""


@dataclass(frozen=True)
class ReceivedMedia:
    """An image, a recording or a file, as the scripted model received it.

    Attributes:
        kind: `image`, `audio` or `file`.
        media_type: Its type; None: the request names none.
        data: The bytes; None: the request has an address.
        name: The name of the file.
        url: The address of an image.
    """

    kind: MediaKind
    media_type: str | None
    data: bytes | None = field(repr=False)
    name: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class ScriptedRequest:
    """A model call, as the scripted model received it.

    Attributes:
        number: The number of the call among those that its script has answered, from 1 on.
        body: The body of the request, in the format of OpenAI's Chat Completions.
    """

    number: int
    body: Mapping[str, Any] = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, oldest first; the system prompt is the first one."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def last(self) -> dict[str, Any]:
        """The last message."""
        return self.messages[-1]

    @property
    def text(self) -> str:
        """The text of the last message; of one with parts, their texts in lines."""
        content = self.last["content"]
        if not isinstance(content, list):
            return str(content)
        return "\n".join(part["text"] for part in content if part.get("type") == "text")

    @property
    def media(self) -> list[ReceivedMedia]:
        """The images, recordings and files of all messages, with their bytes, oldest first."""
        contents = [message.get("content") for message in self.messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        return [media for part in parts if (media := _read_part(part))]

    @property
    def role(self) -> str:
        """The role of the last message: `user` or `tool`."""
        return str(self.last["role"])

    @property
    def system_prompt(self) -> str | None:
        """The system prompt."""
        first = self.messages[0]
        return str(first["content"]) if first["role"] == "system" else None

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [tool["function"]["name"] for tool in self.body.get("tools", ())]


ScriptedAnswer = Reply | str
"""A reply; a string is its text."""
Script = (
    ScriptedAnswer
    | Sequence[ScriptedAnswer]
    | Callable[[ScriptedRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]
)
"""The replies of a model.

- A reply or a string: it is the reply to every call.
- A list: its replies, one a call. A call after the last one fails its request.
- A function: it makes the reply from the request. A sync function runs in a thread of its own and may block, an async
  one runs on the stack's event loop. If it raises, the request fails with the error.
"""


@dataclass(frozen=True)
class ScriptedModels(OwnModels):
    """What scripted models take of images, recordings and files. Their sizes and prices are those of their names.

    Attributes:
        taken: By `provider:name`: what a test has said. Of others it is what their names say.
    """

    taken: dict[str, frozenset[MediaSort]] = field(default_factory=dict)

    def find_taken(self, name: str) -> frozenset[MediaSort] | None:
        """Find what a model takes; None: no test has said it."""
        return self.taken.get(name)


class Scripts:
    """The scripts of the models of a stack, by the model's name, and the requests that they have received.

    Attributes:
        own_models: What the models take of images, recordings and files, for the workers of the stack.
    """

    def __init__(self) -> None:
        self.own_models = ScriptedModels()
        self._scripts: dict[str, Script] = {}
        self._requests: dict[str, list[ScriptedRequest]] = {}
        self._answered: dict[str, int] = {}
        self._agents: dict[str, str] = {}
        self._failures: list[str] = []
        self._lock = threading.Lock()

    def add_model(
        self,
        name: str | None,
        script: Script,
        like: str | None = None,
        takes: Collection[TakenMedia] | None = None,
    ) -> str:
        """Add a model, or replace the script of one. Returns it as `provider:name`; None: a new name is made.

        A new name ends with the name of `like`, so that its window, its encoding and its prices are those of `like`,
        and what it takes of images, recordings and files, unless `takes` says that.
        """
        with self._lock:
            if name is None:
                name = "/".join(filter(None, (f"model-{len(self._scripts)}", like and like.partition(":")[2])))
            self._scripts[name] = script
            self._answered[name] = 0
            self._requests.setdefault(name, [])
            if takes is not None:
                self.own_models.taken[f"{PROVIDER}:{name}"] = frozenset(takes)
        return f"{PROVIDER}:{name}"

    def add_agents(
        self, agents: Iterable[Agent], tools: Iterable[ToolDefinition]
    ) -> tuple[tuple[Agent, ...], tuple[ToolDefinition, ...]]:
        """Replace the models of agents, of their subagents and of those that tools call, by models without a script.

        Returns the agents and the tools with them. `set_script` gives them scripts. They have the windows, the
        encodings and the prices of the models before.
        """
        replacing = _Replacing(self._add_agent)
        return tuple(map(replacing.replace_agent, agents)), tuple(map(replacing.replace_tool, tools))

    def set_script(self, agent: str, script: Script) -> None:
        """Set the script of an agent: of its sessions, and of those that work for it as subagents.

        Raises:
            KeyError: The stack has no such agent, and no agent has such a fallback.
        """
        if agent not in self._agents:
            known = ", ".join(sorted(self._agents)) or "none"
            raise KeyError(f"the stack has no agent {agent!r} to script: it has {known}")
        self.add_model(self._agents[agent], script)

    def check(self) -> None:
        """Raise an error for what has failed in a script, once.

        Raises:
            ScriptFailed: A model was called that has no script, or the script of an agent failed. The failure of a
                subagent is a result that the model above it reads: the test might pass without this.
        """
        with self._lock:
            failures, self._failures = self._failures, []
        if failures:
            raise ScriptFailed("\n".join(failures))

    def _add_agent(self, key: str, name: str) -> str:
        with self._lock:
            self._agents[key] = name
            self._requests.setdefault(name, [])
        return f"{PROVIDER}:{name}"

    def get_requests(self, model: str) -> list[ScriptedRequest]:
        """Get the requests that a model has received, oldest first: `provider:name`, or the name of an agent.

        Raises:
            KeyError: There is no such model, and no such agent.
        """
        return list(self._requests[self._agents.get(model, model.removeprefix(f"{PROVIDER}:"))])

    async def answer(self, body: dict[str, Any]) -> Reply:
        """Make the reply to the body of a request."""
        name = str(body.get("model"))
        whose = next((key for key, model in self._agents.items() if model == name), None)
        if name not in self._scripts:
            problem = f"no script has the name {name!r}"
            if whose:
                problem = (
                    f"nobody has scripted {whose!r}: stack(scripts={{{whose!r}: …}}), or Stack.script({whose!r}, …)"
                )
            return self._fail(HTTPStatus.NOT_FOUND, problem, is_noted=True)
        self._answered[name] += 1
        request = ScriptedRequest(self._answered[name], body)
        self._requests[name].append(request)
        try:
            answer = await _play(self._scripts[name], request)
        except Exception as error:
            # This error is not retried: an assertion of the script ends the test.
            script = f"the script of {whose!r}" if whose else "the script"
            problem = f"{script} raised {type(error).__name__}: {error}"
            return self._fail(HTTPStatus.BAD_REQUEST, problem, is_noted=whose is not None)
        return Reply(answer) if isinstance(answer, str) else answer

    def _fail(self, status: HTTPStatus, problem: str, *, is_noted: bool) -> Reply:
        if is_noted:
            self._failures.append(problem)
        return Reply.error(status, problem)


def _read_part(part: Mapping[str, Any]) -> ReceivedMedia | None:
    """Read a part of a message in OpenAI's form; None: it is a text."""
    match part.get("type"):
        case "image_url":
            url = part["image_url"]["url"]
            media_type, data = _read_data_url(url)
            return ReceivedMedia("image", media_type, data, url=url if data is None else None)
        case "input_audio":
            audio = part["input_audio"]
            return ReceivedMedia("audio", f"audio/{audio['format']}", b64decode(audio["data"]))
        case "file":
            media_type, data = _read_data_url(part["file"]["file_data"])
            return ReceivedMedia("file", media_type, data, part["file"].get("filename"))
    return None


def _read_data_url(url: str) -> tuple[str | None, bytes | None]:
    if not url.startswith("data:"):
        return None, None
    head, _, data = url.removeprefix("data:").partition(";base64,")
    return head or None, b64decode(data)


class _Replacing:
    """Replaces the models of a tree of agents. An agent that several tools call is replaced once."""

    def __init__(self, add_model: Callable[[str, str], str]) -> None:
        self._add_model = add_model
        self._agents: dict[int, tuple[Agent, Agent]] = {}

    def replace_agent(self, agent: Agent) -> Agent:
        """Replace the model of an agent and its fallbacks, and those of its subagents."""
        if id(agent) not in self._agents:
            model = self._name_model(agent.name, agent.model)
            policy = agent.context_policy
            if policy and policy.summarization_model:
                policy = policy.model_copy(update={"summarization_model": model})
            replaced = replace(
                agent,
                model=model,
                fallbacks=[self._name_model(fallback, fallback) for fallback in agent.fallbacks],
                context_policy=policy,
                tools=[self.replace_tool(tool) for tool in agent.own_tools]
                + [tool for tool in agent.tools if isinstance(tool, str)],
            )
            self._agents[id(agent)] = (agent, replaced)
        return self._agents[id(agent)][1]

    def replace_tool(self, tool: ToolDefinition) -> ToolDefinition:
        """Replace the agent of a tool that calls one; other tools stay as they are."""
        if not isinstance(tool, AgentTool):
            return tool
        return AgentTool(
            self.replace_agent(tool.agent),
            tool.name,
            tool.spec["description"],
            timeout_seconds=tool.timeout_seconds,
            requires_approval=tool.requires_approval,
        )

    def _name_model(self, key: str, like: str) -> str:
        provider, _, name = like.partition(":")
        return like if provider == PROVIDER else self._add_model(key, f"{AGENTS}/{key.partition(':')[0]}/{name}")


def make_providers(served: ScriptedModel) -> Providers:
    """Make the provider of the scripted models that a server serves."""
    return load_providers({f"CLEW_PROVIDER_{PROVIDER.upper()}_BASE_URL": served.base_url})


async def _play(script: Script, request: ScriptedRequest) -> ScriptedAnswer:
    match script:
        case str() | Reply():
            return script
        case Sequence():
            if request.number > len(script):
                raise IndexError(f"it has {len(script)} replies, and this is call {request.number}")
            return script[request.number - 1]
        case _:
            if inspect.iscoroutinefunction(script):
                answer: Any = script(request)
            else:
                answer = await asyncio.to_thread(_call, script, request)
            # A sync function may return an awaitable, too.
            reply: ScriptedAnswer = await answer if inspect.isawaitable(answer) else answer
            return reply


def _call(script: Callable[[ScriptedRequest], Any], request: ScriptedRequest) -> Any:
    return script(request)
