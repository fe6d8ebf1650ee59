"""Images, recordings and files in model requests: which of them a request has, and what stands for the others. Pure.

A part is sent if the model takes its kind, and the dialect its media type and its size. Otherwise its text marker is
sent. Where a tool's result, or an assistant's message, must not have a part, the part follows in a user's message
after the results of the round, behind a line that names what it belongs to.

A codec calls `fit_media` first. The contents of the messages that it returns are texts, or lists of texts and of the
parts that are sent; a codec encodes each of those in its own form.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from clew_activities.file_types import decode_text
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import BadRequest, ContextLengthExceeded
from clew_workflows.contract.content import (
    SHOWN_DIGITS,
    Blob,
    Content,
    MediaSort,
    Part,
    describe_part,
    find_sort,
    get_blob,
    get_text,
    list_media,
    name_part,
)
from clew_workflows.contract.messages import Message
from clew_workflows.contract.payloads import MARKED

MAX_CHANGES = 20
"""Most parts that a request's description names; it counts the others."""
MAX_TEXT_BYTES = 256 * 1024
"""Largest text file that is sent."""
PNG, JPEG, WEBP, GIF, HEIC = "image/png", "image/jpeg", "image/webp", "image/gif", "image/heic"
WAV, MP3, PDF = "audio/wav", "audio/mpeg", "application/pdf"
COMMON_IMAGES = frozenset({PNG, JPEG, WEBP, GIF})

_MB = 1024 * 1024
_NAMES: Mapping[MediaSort, str] = {
    "image": "images",
    "audio": "recordings",
    "pdf": "PDF files",
    "text": "text files",
    "other": "files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaForms:
    """What a dialect takes of images, recordings and files. The default is nothing but text files, sent as texts.

    Attributes:
        types: The media types of images, recordings and PDF files that are taken.
        image_urls: Whether an image may be an address, which the server fetches.
        in_results: What a tool's result may have.
        total_bytes: The most bytes of all parts of a request, as base64.
        part_bytes: The largest part, as base64, by its sort; absent: as large as `total_bytes`.
        counts: The most parts, by their sort; absent: any number. The newest are sent.
        side: The most pixels on a side of an image; None: any number.
        many: A number of images, and the most pixels on a side in requests with more of them; None: as `side`.
        text_documents: Whether text files are documents of their own; else their texts stand in the message.
    """

    types: frozenset[str] = frozenset()
    image_urls: bool = False
    in_results: frozenset[MediaSort] = frozenset({"text"})
    total_bytes: int = 16 * _MB
    part_bytes: Mapping[MediaSort, int] = field(default_factory=dict)
    counts: Mapping[MediaSort, int] = field(default_factory=dict)
    side: int | None = None
    many: tuple[int, int] | None = None
    text_documents: bool = False

    def find_problem(self, part: Part, takes: AbstractSet[MediaSort], model: str) -> str | None:
        """Find why a part cannot be sent to a model; None: it can."""
        sort, blob = find_sort(part), get_blob(part)
        if sort not in takes:
            return f"{model} takes no {_NAMES[sort]}"
        if blob is None:
            return None if self.image_urls else "the provider fetches no images"
        if sort == "text":
            return None if blob["bytes"] <= MAX_TEXT_BYTES else f"the text has more than {MAX_TEXT_BYTES} bytes"
        if blob["media_type"] not in self.types:
            return f"the provider takes no {blob['media_type']}"
        if measure_base64(blob["bytes"]) > (most := self.part_bytes.get(sort, self.total_bytes)):
            return f"the provider takes at most {most * 3 // 4} bytes"
        if self.side is not None and _measure_side(blob) > self.side:
            return f"the provider takes at most {self.side} pixels on a side"
        return None


TEXTS_ALONE = MediaForms()


@runtime_checkable
class TakesMedia(Protocol):
    """A provider that takes images, recordings or files. A `Provider` without this method gets their markers."""

    def get_media_forms(self, model: str) -> MediaForms:
        """Return what a model's requests may have."""
        ...


@dataclass(frozen=True, slots=True)
class FittedMedia:
    """The messages of a request.

    Attributes:
        messages: The messages. A content is a text, or a list with at least one part that is sent.
        sent: The parts that are sent, in order.
        replaced: The parts for which a marker stands, each with the reason.
        moved: The parts that stand in another message than in the context.
        added: Messages that the context does not have.
    """

    messages: Sequence[Message]
    sent: tuple[Part, ...] = ()
    replaced: tuple[tuple[Part, str], ...] = ()
    moved: tuple[Part, ...] = ()
    added: int = 0

    @property
    def changes(self) -> dict[str, str]:
        """What was done with parts, by the beginnings of their digests or by their addresses."""
        changes = {name_part(part): f"{MARKED}{reason}" for part, reason in self.replaced}
        changes |= {name_part(part): "follows in a user's message" for part in self.moved}
        shown = dict(list(changes.items())[:MAX_CHANGES])
        return shown if len(shown) == len(changes) else shown | {"others": str(len(changes) - len(shown))}

    @property
    def blobs(self) -> dict[str, Blob]:
        """The blobs of the parts that are sent, by their digests."""
        return {blob["digest"]: blob for part in self.sent if (blob := get_blob(part))}

    @property
    def size(self) -> int:
        """The bytes of the parts that are sent, as base64."""
        return sum(measure_base64(blob["bytes"]) for part in self.sent if (blob := get_blob(part)))

    def ensure_size(self, forms: MediaForms) -> None:
        """Check the sum of the parts' bytes.

        Raises:
            ContextLengthExceeded: The provider takes fewer bytes in a request.
        """
        if self.size > forms.total_bytes:
            raise ContextLengthExceeded(
                f"the images, recordings and files of the context have {self.size} bytes as base64, and the provider "
                f"takes at most {forms.total_bytes} in a request: send smaller ones, or have `clear_media` replace "
                "older ones by markers",
                details={"limit": forms.total_bytes, "actual": self.size},
            )


def fit_media(request: ModelRequest, forms: MediaForms) -> FittedMedia:
    """Choose the parts that a request has, and put texts of text files in their places.

    Raises:
        BadRequest: The bytes of a part are not in the request.
    """
    fitted = choose_media(request, forms)
    if not fitted.sent or forms.text_documents:
        return fitted
    messages = [
        message
        if isinstance(message["content"], str)
        else _with_content(message, [_read_text(part, request.blobs) for part in message["content"]])
        for message in fitted.messages
    ]
    return FittedMedia(messages, fitted.sent, fitted.replaced, fitted.moved, fitted.added)


def choose_media(request: ModelRequest, forms: MediaForms) -> FittedMedia:
    """Choose the parts that a request has. It needs no bytes of blobs."""
    if all(isinstance(message["content"], str) for message in request.messages):
        return FittedMedia(request.messages)
    return _Choice(request, forms).fit()


class _Choice:
    """Chooses the parts of one request."""

    def __init__(self, request: ModelRequest, forms: MediaForms) -> None:
        self._request, self._forms = request, forms
        self._sent: list[Part] = []
        self._replaced: list[tuple[Part, str]] = []
        self._moved: list[Part] = []
        self._problems = self._find_problems()

    def fit(self) -> FittedMedia:
        """Fit all messages."""
        messages: list[Message] = []
        following: list[Part] = []
        added = 0
        for number, message in enumerate(self._request.messages):
            if following and message["role"] != "tool":
                messages.append({"role": "user", "content": following})
                following, added = [], added + 1
            messages.append(self._fit_message(number, message, following))
        if following:
            messages.append({"role": "user", "content": following})
            added += 1
        return FittedMedia(messages, tuple(self._sent), tuple(self._replaced), tuple(self._moved), added)

    def _fit_message(self, number: int, message: Message, following: list[Part]) -> Message:
        """Fit a message. The parts that it must not have are added to those that follow."""
        content = message["content"]
        if isinstance(content, str):
            return message
        kept: list[Part] = []
        for place, part in enumerate(content):
            if part["type"] == "text":
                if part["text"].strip():
                    kept.append(part)
            elif problem := self._problems.get((number, place)):
                self._replaced.append((part, problem))
                kept.append({"type": "text", "text": describe_part(part)})
            else:
                self._sent.append(part)
                if message["role"] == "user" or (
                    message["role"] == "tool" and find_sort(part) in self._forms.in_results
                ):
                    kept.append(part)
                    continue
                self._moved.append(part)
                following += [{"type": "text", "text": _introduce(message, part)}, part]
                if message["role"] == "tool":
                    kept.append({"type": "text", "text": describe_part(part)})
        return _with_content(message, kept)

    def _find_problems(self) -> dict[tuple[int, int], str]:
        """Find why parts cannot be sent, by their places. Those that are too many are the oldest."""
        request, forms = self._request, self._forms
        problems: dict[tuple[int, int], str] = {}
        counts: Counter[MediaSort] = Counter()
        places = list(_iterate_media(request.messages))
        for number, place, part in reversed(places):
            sort = find_sort(part)
            if request.messages[number]["role"] == "system":
                problems[number, place] = "a system message is a text"
            elif problem := forms.find_problem(part, request.takes, request.model):
                problems[number, place] = problem
            elif (most := forms.counts.get(sort)) is not None and counts[sort] >= most:
                problems[number, place] = f"the provider takes at most {most} {_NAMES[sort]}"
            else:
                counts[sort] += 1
        if forms.many and counts["image"] > forms.many[0]:
            problem = (
                f"in requests with more than {forms.many[0]} images the provider takes {forms.many[1]} on a side"
            )
            for number, place, part in places:
                if (blob := get_blob(part)) and find_sort(part) == "image" and _measure_side(blob) > forms.many[1]:
                    problems.setdefault((number, place), problem)
        return problems


def _iterate_media(messages: Sequence[Message]) -> Iterator[tuple[int, int, Part]]:
    """Iterate over the parts that are no texts, with the number of the message and the place in it."""
    for number, message in enumerate(messages):
        if not isinstance(message["content"], str):
            for place, part in enumerate(message["content"]):
                if part["type"] != "text":
                    yield number, place, part


def _with_content(message: Message, parts: Sequence[Part]) -> Message:
    """Return a message with other parts; texts alone become one text."""
    content: Content = list(parts) if list_media(list(parts)) else get_text(list(parts))
    return {**message, "content": content}


def _introduce(message: Message, part: Part) -> str:
    """Write the line before a part that stands in another message."""
    if message["role"] == "tool":
        source = f"the result of {message.get('name', 'a tool')}, call {message.get('tool_call_id', '')}"
    else:
        source = "the reply before"
    return f"From {source}: {describe_part(part)}"


def _read_text(part: Part, blobs: Mapping[str, bytes]) -> Part:
    """Return the text of a text file, behind its marker; another part as it is."""
    if part["type"] == "text" or find_sort(part) != "text":
        return part
    return {"type": "text", "text": f"{describe_part(part)}\n{read_text(part, blobs)}"}


def read_text(part: Part, blobs: Mapping[str, bytes]) -> str:
    """Read the text of a text file.

    Raises:
        BadRequest: The request has not its bytes.
    """
    return decode_text(get_bytes(part, blobs))


def get_media_type(part: Part) -> str:
    """Return the media type of a part's blob; empty: it has none."""
    blob = get_blob(part)
    return blob["media_type"] if blob else ""


def get_bytes(part: Part, blobs: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a part.

    Raises:
        BadRequest: The request has not its bytes.
    """
    blob = get_blob(part)
    data = blobs.get(blob["digest"]) if blob else None
    if data is None:
        raise BadRequest(f"the request has not the bytes of {describe_part(part)}")
    return data


def encode_base64(part: Part, blobs: Mapping[str, bytes]) -> str:
    """Encode the bytes of a part; raises as `get_bytes`."""
    return b64encode(get_bytes(part, blobs)).decode("ascii")


def make_data_url(part: Part, blobs: Mapping[str, bytes]) -> str:
    """Make the data URL of a part; raises as `get_bytes`."""
    return f"data:{get_media_type(part)};base64,{encode_base64(part, blobs)}"


def get_url(part: Part) -> str | None:
    """Return the address of an image that has no blob."""
    return None if get_blob(part) else str(part.get("url", ""))


def name_file(part: Part, ending: str) -> str:
    """Name a file: as its blob, or by its digest."""
    blob: Any = get_blob(part)
    return str(blob.get("name") or f"{blob['digest'][:SHOWN_DIGITS]}{ending}")


def measure_base64(size: int) -> int:
    """Measure bytes as base64."""
    return -(-size // 3) * 4


def describe_replaced(replaced: Iterable[tuple[Part, str]]) -> str:
    """Describe the first part that is not sent, and count the others."""
    (part, reason), *others = replaced
    more = f" (and {len(others)} more)" if others else ""
    return f"{describe_part(part)} cannot be shown: {reason}{more}"


def _measure_side(blob: Blob) -> int:
    return max(blob.get("width", 0), blob.get("height", 0))
