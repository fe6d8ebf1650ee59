"""What a provider refuses of a request, and the request without it. Pure.

A part, the provider's own data of a message, a tool or a name that a provider refuses would be refused with every
later call, too. `Search` chooses what the next try of a call leaves out: what the refusal names by its path in the
body, its id or its name, or else one suspect after another, the newest first, then all of its kind, then all.
A text that is refused for its content is looked for among those that the provider has never accepted, then among the
others. If a refusal says nothing of what it means, the texts that were never accepted are suspects, too. The newest
message of a user is always sent: its sender is to be told that it was refused.
`leave_out` makes a request without what was refused. What is left out is named by what it is, not by its place, so
that later calls leave it out wherever it stands.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from typing import Any, cast

from clew_activities.providers.answer_object import is_object_schema
from clew_activities.providers.fit_messages import get_own_data
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import ItemKind, ItemRefused, PromptRefused
from clew_activities.providers.request_media import MediaForms, choose_media, encode_base64, get_url, read_text
from clew_workflows.contract.content import Part, describe_part, find_sort, get_blob, get_text, list_media, name_part
from clew_workflows.contract.messages import Message, ToolSpec, compute_digest
from clew_workflows.contract.payloads import Fitting, Refused, RefusedKind
from clew_workflows.protocol import ModelReply

MAX_TRIES = 12
"""Most requests of one attempt that leave something more out."""
MAX_SINGLE: Mapping[ItemKind | None, int] = {None: 4, "media": 4, "own_data": 3, "tool": 2, "text": 4}
"""Most suspects that are left out one at a time, before all of their kind are."""
MAX_NAMED: Mapping[ItemKind, int] = {"media": 6, "own_data": 2, "tool": 4}
"""Most refusals that name an item of a kind, after which all of the kind are left out. Own data that can no longer be
read is refused item by item, and there may be hundreds."""

_ID_CHARACTERS = 16
_REASON_CHARACTERS = 200
_LONGEST_WORDS = 20_000
_MARKER = "shown as a marker"
TEXT_MARKER = "[this message was refused by the model's provider because of its content]"
"""What stands for a message whose text was refused. The provider's words are not in it: they may quote the text."""
_SHORTEST_MARK = 6

Item = tuple[RefusedKind, str]
"""Something that requests leave out: its kind, and its id."""


# Requests without what was refused.


@dataclass(frozen=True, slots=True)
class Reduced:
    """A request without what its provider has refused.

    Attributes:
        request: The request.
        refused: The items that the context has and the request has not.
        media: The parts that are shown otherwise, as in a `Fitting`.
        tools: The tools that were changed, by the session's names, as in a `Fitting`.
        tools_left_out: The tools that were left out, by the session's names, as in a `Fitting`.
        own_data: The messages without own data.
        texts: The messages that are shown as markers.
        names: The session's names of tools, by those of the request.
    """

    request: ModelRequest
    refused: tuple[Refused, ...] = ()
    media: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    tools_left_out: Mapping[str, str] = field(default_factory=dict)
    own_data: int = 0
    texts: int = 0
    names: Mapping[str, str] = field(default_factory=dict)

    def list_markers(self) -> list[str]:
        """Describe the parts for which a marker stands."""
        shown = [(name, change) for name, change in self.media.items() if change.startswith(_MARKER)]
        return [f"{name} cannot be shown{change.removeprefix(_MARKER)}" for name, change in shown]

    def restore_names(self, reply: ModelReply) -> ModelReply:
        """Give the tools of a reply's calls the session's names."""
        calls = tuple(
            call.model_copy(update={"name": self.names.get(call.name, call.name)}) for call in reply.tool_calls
        )
        return reply.model_copy(update={"tool_calls": calls}) if self.names else reply

    def describe(self, fitting: Fitting | None) -> Fitting | None:
        """Add what is left out to the description of the request, which its encoder has made."""
        if not self.refused:
            return fitting
        fitting = fitting or Fitting(dialect="")
        return replace(
            fitting,
            media={**fitting.media, **self.media},
            tools=_restore_names({**fitting.tools, **_add_changes(fitting.tools, self.tools)}, self.names),
            tools_left_out=_restore_names({**fitting.tools_left_out, **self.tools_left_out}, self.names),
            own_data=fitting.own_data + self.own_data,
            texts=self.texts,
        )


def leave_out(request: ModelRequest, refused: Iterable[Refused]) -> Reduced:
    """Make the request without the items that its provider has refused."""
    reasons: dict[Item, str] = {(group.kind, name): group.reason for group in refused for name in group.ids}
    return _Reduction(request, reasons).reduce() if reasons else Reduced(request)


def group_items(reasons: Mapping[Item, str]) -> tuple[Refused, ...]:
    """Group items by their kinds and reasons."""
    groups: dict[tuple[RefusedKind, str], list[str]] = {}
    for (kind, name), reason in reasons.items():
        groups.setdefault((kind, reason), []).append(name)
    return tuple(Refused(kind=kind, ids=tuple(names), reason=reason) for (kind, reason), names in groups.items())


def identify_part(part: Part) -> str:
    """Identify an image, a recording or a file: by its bytes, or by its address."""
    blob = get_blob(part)
    return blob["digest"][:_ID_CHARACTERS] if blob else _hash(get_url(part) or "")


def identify_own_data(message: Message) -> str:
    """Identify the provider's own data of a message."""
    return compute_digest(message["provider_data"])[:_ID_CHARACTERS]


def identify_text(message: Message) -> str:
    """Identify what a message says: its content, and the calls that it makes."""
    calls = [[call["name"], call["arguments"]] for call in message.get("tool_calls", ())]
    return compute_digest([message["content"], calls])[:_ID_CHARACTERS]


def identify_tool(spec: ToolSpec) -> str:
    """Identify a tool with its schema: one that is changed later may be accepted."""
    return f"{spec['name']}:{compute_digest(spec)[:_ID_CHARACTERS]}"


class _Reduction:
    """Makes one request without what was refused."""

    def __init__(self, request: ModelRequest, reasons: Mapping[Item, str]) -> None:
        self._request = request
        self._reasons = reasons
        self._used: dict[Item, str] = {}
        self._media: dict[str, str] = {}
        self._own_data = 0
        self._texts = 0
        self._aliases: dict[str, str] = {}
        self._changed: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        calls = (call["name"] for message in request.messages for call in message.get("tool_calls", ()))
        self._names = {*(spec["name"] for spec in request.tools), *calls}

    def reduce(self) -> Reduced:
        tools = [tool for spec in self._request.tools if (tool := self._reduce_tool(spec)) is not None]
        newest = _find_newest_message(self._request.messages)
        messages = [self._reduce_message(message, newest) for message in self._request.messages]
        options = self._request.options
        choice = options.tool_choice
        if choice in self._aliases:
            options = options.model_copy(update={"tool_choice": self._aliases[choice]})
        elif choice in self._left_out or (choice == "required" and not tools):
            options = options.model_copy(update={"tool_choice": None})
        return Reduced(
            replace(self._request, messages=messages, tools=tools, options=options),
            group_items(self._used),
            self._media,
            self._changed,
            self._left_out,
            self._own_data,
            self._texts,
            {alias: name for name, alias in self._aliases.items()},
        )

    def _find(self, kind: RefusedKind, name: str) -> str | None:
        """Find the reason for which an item is left out; None: it is not."""
        reason = self._reasons.get((kind, name))
        if reason is not None:
            self._used[kind, name] = reason
        return reason

    def _reduce_tool(self, spec: ToolSpec) -> ToolSpec | None:
        name, identity = spec["name"], identify_tool(spec)
        if (reason := self._find("tool", identity)) is not None:
            self._left_out[name] = f"the provider refused it: {reason}"
            return None
        if (reason := self._find("tool_schema", identity)) is not None:
            self._changed[name] = f"schema simplified: the provider refused it: {reason}"
            spec = {**spec, "parameters": _simplify(spec["parameters"])}
        if (reason := self._find_alias(name)) is not None:
            self._changed[name] = f"name {self._aliases[name]}: the provider refused it: {reason}"
            spec = {**spec, "name": self._aliases[name]}
        return spec

    def _find_alias(self, name: str) -> str | None:
        reason = self._find("tool_name", name)
        if reason is not None and name not in self._aliases:
            self._aliases[name] = self._make_alias(name)
        return reason

    def _make_alias(self, name: str) -> str:
        """Make another name for a tool, which no other tool of the request has and which was never refused."""
        for number in count():
            alias = f"tool_{_hash(f'{number} {name}' if number else name)[:8]}"
            is_refused = ("tool_name", alias) in self._reasons
            if not is_refused and alias not in self._names and alias not in self._aliases.values():
                return alias
        raise AssertionError("there are more numbers than names")

    def _reduce_message(self, message: Message, newest: Message | None) -> Message:
        if _says_something(message) and message is not newest:
            message = self._reduce_text(message)
        if "provider_data" in message and self._find("own_data", identify_own_data(message)) is not None:
            message = message.copy()
            del message["provider_data"]
            self._own_data += 1
        if not isinstance(message["content"], str):
            parts = [self._reduce_part(part) for part in message["content"]]
            if parts != message["content"]:
                message = {**message, "content": parts if list_media(parts) else get_text(parts)}
        for call in message.get("tool_calls", ()):
            self._find_alias(call["name"])
        if any(call["name"] in self._aliases for call in message.get("tool_calls", ())):
            calls = message["tool_calls"]
            message = {
                **message,
                "tool_calls": [{**call, "name": self._aliases.get(call["name"], call["name"])} for call in calls],
            }
        if (name := message.get("name")) is not None and self._find_alias(name) is not None:
            message = {**message, "name": self._aliases[name]}
        return message

    def _reduce_text(self, message: Message) -> Message:
        """Show a message as a marker. The provider's own data would repeat what it says."""
        if self._find("text", identify_text(message)) is None:
            return message
        self._texts += 1
        marked: Message = {**message, "content": TEXT_MARKER if message["content"] else ""}
        if "tool_calls" in message:
            marked["tool_calls"] = [{**call, "arguments": {}} for call in message["tool_calls"]]
        marked.pop("provider_data", None)
        return marked

    def _reduce_part(self, part: Part) -> Part:
        if part["type"] == "text":
            return part
        identity = identify_part(part)
        if (reason := self._find("media", identity)) is not None:
            self._media[name_part(part)] = f"{_MARKER}: the provider refused it: {reason}"
            return {"type": "text", "text": f"{describe_part(part)[:-1]}; the provider refused it: {reason}]"}
        if (reason := self._find("file_name", identity)) is not None:
            self._media[name_part(part)] = f"sent without its name: the provider refused it: {reason}"
            blob: Any = get_blob(part)
            changed: Any = {**part, "blob": {key: value for key, value in blob.items() if key != "name"}}
            return cast("Part", changed)
        return part


def _find_newest_message(messages: Sequence[Message]) -> Message | None:
    """Find the newest message of a user."""
    return next((message for message in reversed(messages) if message["role"] == "user"), None)


def _says_something(message: Message) -> bool:
    """Whether a message has a text that a provider may refuse. The system's are the operator's."""
    return message["role"] != "system" and bool(message["content"] or message.get("tool_calls"))


def _simplify(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the names and the plain types of a schema's properties; another schema allows any object."""
    properties = schema.get("properties") if is_object_schema({**schema}) else None
    if not isinstance(properties, Mapping):
        return {"type": "object", "properties": {}}
    simple: dict[str, Any] = {}
    for name, inner in properties.items():
        kind = inner.get("type") if isinstance(inner, Mapping) else None
        simple[name] = {"type": kind} if kind in ("string", "number", "integer", "boolean") else {}
        if isinstance(inner, Mapping) and isinstance(description := inner.get("description"), str):
            simple[name]["description"] = description
    return {"type": "object", "properties": simple}


def _add_changes(made: Mapping[str, str], further: Mapping[str, str]) -> dict[str, str]:
    return {name: f"{made[name]}, {change}" if name in made else change for name, change in further.items()}


def _restore_names(values: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names.get(name, name): value for name, value in values.items()}


# The search for what is refused.


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Something of a request that may be what is refused.

    Attributes:
        kind: Its kind.
        steps: What is tried to have it accepted, one after another: the last one leaves it out.
        marks: Texts of the body that belong to it alone.
        names: What a message may call it.
    """

    kind: ItemKind
    steps: tuple[Item, ...]
    marks: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


Plan = deque[tuple[Item, ...]]


class Search:
    """Chooses what the tries of one call leave out, refusal by refusal.

    What has changed the refusal was refused, and stays left out. What has not is tried again.

    Attributes:
        has_next: Whether there is another try.
    """

    def __init__(self, request: ModelRequest, forms: MediaForms, provider: str, refused: Iterable[Refused]) -> None:
        """Begin with the call's request, and with what earlier calls have left out.

        Args:
            request: The request, with nothing left out.
            forms: What the provider takes of images, recordings and files.
            provider: The provider.
            refused: What earlier calls have left out.
        """
        self._request, self._forms, self._provider = request, forms, provider
        self._reasons: dict[Item, str] = {(group.kind, name): group.reason for group in refused for name in group.ids}
        self._trial: dict[Item, str] = {}
        self._plan: Plan = deque()
        self._words = ""
        self._tries = 0
        self._named: Counter[ItemKind] = Counter()
        self.has_next = True

    @property
    def reduced(self) -> Reduced:
        """The request of the next try."""
        return leave_out(self._request, group_items({**self._reasons, **self._trial}))

    def take(self, error: ItemRefused, sent: ModelRequest, body: Mapping[str, Any]) -> None:
        """Take a refusal, and choose the next try.

        Args:
            error: The refusal.
            sent: The request that was refused, with the bytes of its parts.
            body: Its body.
        """
        self._tries += 1
        words = _normalize(error.words)
        if words != self._words:
            self._reasons |= self._trial
            self._words = words
            if error.kind == "text":
                self._plan = self._plan_texts()
            else:
                candidates = list_candidates(
                    sent, self._forms, self._provider, tools=self._request.tools, names=self.reduced.names
                )
                self._plan = self._make_plan(error, candidates, body)
        self.has_next = bool(self._plan) and self._tries <= MAX_TRIES
        if self.has_next:
            self._trial = dict.fromkeys(self._plan.popleft(), _shorten(error.message))

    def note_texts(self, error: PromptRefused, model: str, *, tried: bool) -> None:
        """Add to the error what later calls of the model leave out, if this one fails because its prompt was refused.

        It is the newest message of a user, if the request was `tried` without the others: it alone was always sent.
        Otherwise it is all that was never accepted.
        """
        newest = _find_newest_message(self._request.messages)
        ids = [identify_text(newest)] if newest is not None else []
        if not tried:
            ids += [name for _, name in self._list_texts()[0]]
        refused = Refused(kind="text", ids=tuple(dict.fromkeys(ids)), reason=_shorten(error.message))
        if ids:
            error.details |= {"refused": refused.as_dict(), "model": model}

    def _list_texts(self) -> tuple[list[Item], list[Item]]:
        """List what messages say, the newest first: what the provider has never accepted, and what it has.

        It has never seen the newest message of the model, and what follows it.
        """
        messages = self._request.messages
        newest = _find_newest_message(messages)
        last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
        found: tuple[dict[Item, None], dict[Item, None]] = ({}, {})
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message is newest or not _says_something(message):
                continue
            item: Item = ("text", identify_text(message))
            if item not in self._reasons and item not in found[0]:
                found[index < last][item] = None
        return list(found[0]), list(found[1])

    def _plan_texts(self) -> Plan:
        """Plan which texts the next tries leave out. Few: providers count the requests that they refuse for this."""
        new, old = self._list_texts()
        single = MAX_SINGLE["text"]
        plan = [*_plan_new_texts(new), old[:single], old[single:], [*new, *old]]
        return deque(dict.fromkeys(filter(None, map(tuple, plan))))

    def _make_plan(self, error: ItemRefused, candidates: Sequence[_Candidate], body: Mapping[str, Any]) -> Plan:
        """Plan what the next tries leave out, until the refusal is another one."""
        kind = error.kind
        named = find_named(error, candidates, body)
        kinds: dict[ItemKind, None] = dict.fromkeys(candidate.kind for candidate in named)
        self._named.update(kinds.keys())
        suspects = [one for one in candidates if one.kind == kind] if kind else []
        if not suspects:
            suspects = [one for one in candidates if one.kind != "tool"]
        plan: list[tuple[Item, ...]] = []
        if any(self._named[one] > MAX_NAMED[one] for one in kinds):
            suspects = [one for one in candidates if one.kind in kinds]
        else:
            plan += _list_steps(named, error)
            for suspect in suspects[: MAX_SINGLE[kind]]:
                plan += _list_steps([suspect], error)
        plan += _list_steps(suspects, error)
        others = [one for one in candidates if one.kind != "tool"]
        plan += _list_steps(others, error)
        if kind is None and not named:
            # Providers refuse texts for their content in words of their own, too.
            plan += _plan_new_texts(self._list_texts()[0])
        if kind is None and _VAGUE.search(error.words):
            # A session without its tools does nothing of what it is for, and yet answers: they are the last.
            schemas = tuple(item for one in candidates for item in one.steps if item[0] == "tool_schema")
            tools = tuple(one.steps[-1] for one in candidates if one.kind == "tool")
            rest = tuple(one.steps[-1] for one in others)
            plan += [schemas, (*schemas, *rest), tools, (*tools, *rest)]
        return deque(dict.fromkeys(filter(None, plan)))


def _plan_new_texts(new: Sequence[Item]) -> list[tuple[Item, ...]]:
    """Plan how the texts that were never accepted are left out: the newest first, then all."""
    return [*((item,) for item in new[: MAX_SINGLE["text"]]), tuple(new)]


def _list_steps(candidates: Sequence[_Candidate], error: ItemRefused) -> list[tuple[Item, ...]]:
    """List what is tried to have candidates accepted together. Names are changed if the refusal speaks of names."""
    milder: tuple[RefusedKind, ...] = ("tool_schema",)
    if _ABOUT_NAMES.search(error.words):
        milder = ("file_name", "tool_name", *milder)
    steps: list[tuple[Item, ...]] = []
    for kind in milder:
        items = tuple(item for one in candidates for item in one.steps if item[0] == kind)
        rest = tuple(one.steps[-1] for one in candidates if all(item[0] != kind for item in one.steps))
        steps += [(*items, *rest)] if items else []
    return [*steps, tuple(one.steps[-1] for one in candidates)]


_VAGUE = re.compile(
    r"invalid (?:argument|request|input|json|parameter)|bad request|validation|malformed", re.IGNORECASE
)
_ABOUT_NAMES = re.compile(r"(?<!unknown )\b(?:file|document|tool|function)?[_-]?names?\b|\btitle\b", re.IGNORECASE)


def list_candidates(
    request: ModelRequest,
    forms: MediaForms,
    provider: str,
    *,
    tools: Sequence[ToolSpec] = (),
    names: Mapping[str, str] | None = None,
) -> list[_Candidate]:
    """List what a request could leave out, the newest first; the same item stands there once. Tools are the last.

    Args:
        request: The request, which may have left something out already.
        forms: What the provider takes of images, recordings and files.
        provider: The provider.
        tools: The tools of the session, as they were before any was changed.
        names: The session's names of tools, by those of the request, where they differ.
    """
    sent = {identify_part(part) for part in choose_media(request, forms).sent}
    candidates: dict[tuple[Item, ...], _Candidate] = {}
    for message in reversed(request.messages):
        for part in reversed(list_media(message["content"])):
            if identify_part(part) in sent:
                _add(candidates, _make_media_candidate(part, request))
        if get_own_data(message, provider) is not None:
            item: Item = ("own_data", identify_own_data(message))
            marks = frozenset(_iterate_own_texts(message["provider_data"]))
            _add(candidates, _Candidate("own_data", (item,), marks, marks))
    originals = {spec["name"]: spec for spec in tools}
    for spec in request.tools:
        if (own := originals.get((names or {}).get(spec["name"], spec["name"]))) is not None:
            _add(candidates, _make_tool_candidate(spec, own))
    # Calls of tools that are no longer offered.
    called = {call["name"] for message in request.messages for call in message.get("tool_calls", ())}
    for name in sorted(called - {spec["name"] for spec in request.tools} - {*(names or {})}):
        written = frozenset({name, _write_name(name)})
        _add(candidates, _Candidate("tool", (("tool_name", name),), written, written))
    return list(candidates.values())


def _add(candidates: dict[tuple[Item, ...], _Candidate], candidate: _Candidate) -> None:
    candidates.setdefault(candidate.steps, candidate)


def _make_tool_candidate(spec: ToolSpec, own: ToolSpec) -> _Candidate:
    """Make the candidate of a tool. `own` is the session's, which names it; `spec` may have been changed."""
    identity = identify_tool(own)
    steps: list[Item] = [("tool", identity)]
    if spec["parameters"] not in (_simplify(own["parameters"]), _simplify(spec["parameters"])):
        steps.insert(0, ("tool_schema", identity))
    if spec["name"] == own["name"]:
        steps.insert(0, ("tool_name", own["name"]))
    names = frozenset({spec["name"], _write_name(spec["name"])})
    return _Candidate("tool", tuple(steps), names | {spec["description"]} - {""}, names)


def _make_media_candidate(part: Part, request: ModelRequest) -> _Candidate:
    identity, blob, url = identify_part(part), get_blob(part), get_url(part)
    steps: tuple[Item, ...] = (("media", identity),)
    names = {url} if url else set()
    if blob and (name := blob.get("name")):
        names.add(str(name))
        if find_sort(part) in ("pdf", "text", "other"):
            steps = (("file_name", identity), *steps)
    mark = url or ""
    if blob and blob["digest"] in request.blobs:
        is_text = find_sort(part) == "text"
        mark = read_text(part, request.blobs) if is_text else encode_base64(part, request.blobs)
    return _Candidate("media", steps, frozenset({mark} - {""}), frozenset(names))


_NOT_OWN = frozenset({"type", "role", "status", "text", "provider", "model", "name", "arguments", "args", "input"})
"""Fields of own data whose texts other parts of the body may have, too."""


def _iterate_own_texts(data: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over the texts of own data that no other part of the body has."""
    level: list[Any] = list(data.get("blocks", ()))
    level += [{key: value for key, value in call.items() if key != "id"} for call in data.get("calls", ())]
    while level:
        value = level.pop()
        if isinstance(value, dict):
            level += [inner for key, inner in value.items() if key not in _NOT_OWN]
        elif isinstance(value, list):
            level += value
        elif isinstance(value, str) and len(value) >= _SHORTEST_MARK:
            yield value


# What a refusal names.


def find_named(error: ItemRefused, candidates: Sequence[_Candidate], body: Mapping[str, Any]) -> list[_Candidate]:
    """Find the candidates that a refusal names: by a path in the body, an id, a name, an address or a beginning."""
    words = error.words[:_LONGEST_WORDS]
    of_kind = [one for one in candidates if error.kind in (None, one.kind)]
    for path in _list_paths(words):
        for node in reversed(_follow(body, path)):
            if found := [one for one in of_kind if _holds(node, one)]:
                return found
    return [one for one in of_kind if any(_names(words, name, one.kind, error.kind) for name in one.names)]


_SEGMENT = r"(?:[./]?\[['\"]?\w+['\"]?\]|[./]\w+)"
_PATH = re.compile(rf"(?:\b|#/)(?:messages|contents|input|tools|tool_?config){_SEGMENT}+", re.IGNORECASE)
_LOCATION = re.compile(r"[(\[]'body'((?:, ?(?:'\w+'|\d+))+)[)\]]")
_CONTENT_POSITION = re.compile(r"content position (\d{1,6}),? part position (\d{1,6})", re.IGNORECASE)


def _list_paths(words: str) -> Iterator[list[str]]:
    """List the paths in the body that a message names, each as its keys and indices."""
    for match in _PATH.finditer(words):
        steps = re.findall(r"\w+", match[0])
        if "member" in steps:
            # AWS counts from 1 where it writes `member`.
            steps = [str(int(step) - 1) if _is_index(step) else step for step in steps if step != "member"]
        yield steps
    for match in _LOCATION.finditer(words):
        yield re.findall(r"\w+", match[1])
    for match in _CONTENT_POSITION.finditer(words):
        yield ["contents", str(int(match[1]) - 1), "parts", str(int(match[2]) - 1)]


def _follow(body: Mapping[str, Any], path: Sequence[str]) -> list[Any]:
    """Follow a path. Returns the values on the way, from the first item of a list on.

    Messages name types between keys (`content.1.image.source`), which are no keys, and the names of other languages.
    """
    node: Any = body
    nodes: list[Any] = []
    for step in path:
        if isinstance(node, list):
            if not _is_index(step):
                continue
            if int(step) >= len(node):
                break
            node = node[int(step)]
            nodes.append(node)
        elif isinstance(node, Mapping):
            key = next((key for key in node if _fold(key) == _fold(step)), None)
            if key is None:
                continue
            node = node[key]
            if nodes:
                nodes.append(node)
    return nodes


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) <= 6


def _fold(key: str) -> str:
    return key.replace("_", "").lower()


def _holds(node: Any, candidate: _Candidate) -> bool:
    """Whether a part of the body has a candidate."""
    level = [node]
    while level:
        value = level.pop()
        if isinstance(value, Mapping):
            level += value.values()
        elif isinstance(value, list):
            level += value
        elif isinstance(value, str):
            if value in candidate.marks:
                return True
            # Parts stand behind the beginning of a data URL, or within a text.
            if candidate.kind == "media" and any(mark in value for mark in candidate.marks):
                return True
    return False


def _names(words: str, name: str, kind: ItemKind, said: ItemKind | None) -> bool:
    """Whether a message names something of a kind, or shows how it begins and ends (`gAAA...DQ==`).

    `said`: the kind that the message speaks of. If it speaks of none, a word that is a tool's name is just a word.
    """
    if len(name) < 3:
        return False
    if kind == "own_data":
        shown = re.findall(r"([\w+/=-]{3,})(?:\.\.\.|…)([\w+/=-]{2,})", words)
        if any(name.startswith(start) and name.endswith(end) for start, end in shown):
            return True
    before, after = ("['\"`]", "['\"`]") if kind == "tool" and said is None else (r"(?<![\w-])", r"(?![\w-])")
    return re.search(f"{before}{re.escape(name)}{after}", words) is not None


def _write_name(name: str) -> str:
    """Write a tool's name as most dialects have it."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


_VARYING = re.compile(
    r"\(?\b(?:request[ _]?id|req|trace[ _]?id)\b[:=_ ]*['\"]?[\w-]{6,}['\"]?\)?"
    r"|\b0x[0-9a-f]+\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b(?:line|column|char|byte|offset) \d+|\b\d{5,}\b",
    re.IGNORECASE,
)


def _normalize(words: str) -> str:
    """Remove what differs in two messages about the same item: ids of requests, addresses, places in the body."""
    return _VARYING.sub("", words)


def _shorten(message: str) -> str:
    """Shorten a provider's message to one line."""
    line = " ".join(message.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 1]}…"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:_ID_CHARACTERS]
