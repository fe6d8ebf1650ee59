"""What the extra `bedrock` does with AWS's own package `botocore`: credentials, signatures, the binary event stream.

Nothing here imports it before it is needed, so that a worker and an audit without the extra can load the module.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from clew_activities.providers.provider_errors import BadRequest, ProviderUnavailable, TruncatedStream, Unauthorized
from clew_activities.providers.sanitize import parse_json
from clew_workflows.contract.extras import name_install

EXTRA = "bedrock"
"""The extra that brings what this module needs."""
EVENT_STREAM = "application/vnd.amazon.eventstream"
"""The content type of a stream of frames."""
EXCEPTION = "exception"
"""The event's name of an error in a stream; its data is an object with `type` and `message`."""

SECONDS_BETWEEN_SEARCHES = 60.0
"""The shortest time from a search that has found no credentials to the next one."""

_SIGNED_HEADERS = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")

# A frame: its length and the length of its headers, each of 4 bytes; a checksum; headers; payload; a checksum.
_PRELUDE_BYTES = 12
_CHECKSUM_BYTES = 4

# Bytes of a frame's headers. Real ones have some 100; botocore's time for more grows with their square.
_MAX_HEADER_BYTES = 8192


def is_installed() -> bool:
    """Whether the extra `bedrock` is installed."""
    return find_spec("botocore") is not None


class AwsCredentials:
    """The credentials of the worker, as AWS's own programs find them. Threads may use it at the same time.

    Keys in the environment are used as they are. Otherwise botocore searches for them when they are first needed: in
    AWS's files, at IAM Identity Center, at the container's and the machine's metadata. It renews those that expire. A
    search takes seconds where no metadata answer, so the result is kept if nothing is found, too, for
    `SECONDS_BETWEEN_SEARCHES`.
    """

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._access_key = environ.get("AWS_ACCESS_KEY_ID", "").strip()
        self._secret_key = environ.get("AWS_SECRET_ACCESS_KEY", "").strip()
        self._token = environ.get("AWS_SESSION_TOKEN", "").strip()
        self._profile = environ.get("AWS_PROFILE", "").strip()
        self._found: Any = None
        self._clock = clock
        self._searched_at: float | None = None
        self._lock = threading.Lock()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values that the environment holds."""
        return tuple(filter(None, (self._secret_key, self._token)))

    def sign(self, url: str, content_type: str, body: bytes, *, service: str, region: str) -> dict[str, str]:
        """Sign a POST with Signature Version 4, and return the headers of the signature.

        Raises:
            ProviderUnavailable: The credentials cannot be renewed or read at present.
            Unauthorized: There are no credentials.
        """
        from botocore.auth import SigV4Auth  # noqa: PLC0415 - the extra may not be installed
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

        try:
            found = self._get()
            if found is None:
                raise Unauthorized(
                    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the "
                    "worker a role"
                )
            credentials = found.get_frozen_credentials()
        except BotoCoreError as error:
            raise ProviderUnavailable(
                f"the AWS credentials cannot be read ({type(error).__name__}: {error})"
            ) from error
        request = AWSRequest("POST", url, headers={"content-type": content_type}, data=body)
        SigV4Auth(credentials, service, region).add_auth(request)
        return {name.lower(): request.headers[name] for name in _SIGNED_HEADERS if name in request.headers}

    def _get(self) -> Any:
        """Return botocore's credentials, searching for them if that is due; None: there are none."""
        with self._lock:
            if self._found is None and self._is_search_due():
                self._found = self._find()
                self._searched_at = self._clock()
            return self._found

    def _is_search_due(self) -> bool:
        return self._searched_at is None or self._clock() - self._searched_at >= SECONDS_BETWEEN_SEARCHES

    def _find(self) -> Any:
        from botocore.credentials import Credentials  # noqa: PLC0415
        from botocore.session import Session  # noqa: PLC0415

        if self._access_key and self._secret_key:
            return Credentials(self._access_key, self._secret_key, self._token or None)
        return Session(profile=self._profile or None).get_credentials()


class FrameParser:
    """Reads the frames of a body with at most `frame_bytes` each, from its pieces.

    Raises:
        BadRequest: The extra is not installed.
    """

    def __init__(self, frame_bytes: int) -> None:
        if not is_installed():
            raise BadRequest(f"the reply is a stream of AWS, which needs the extra `{EXTRA}`: {name_install(EXTRA)}")
        self._frame_bytes = frame_bytes
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """Take a piece. Yields the name and the data of each event; an error in the stream is the event `EXCEPTION`.

        Raises:
            TruncatedStream: A frame is damaged or longer than `frame_bytes`.
        """
        buffer = self._buffer
        buffer += piece
        while len(buffer) >= _PRELUDE_BYTES and len(buffer) >= (size := _read_size(buffer, self._frame_bytes)):
            frame = bytes(buffer[:size])
            del buffer[:size]
            if event := _parse_frame(frame):
                yield event

    def finish(self) -> Iterator[tuple[str, str]]:
        """Take the end of the body.

        Raises:
            TruncatedStream: It is within a frame.
        """
        if self._buffer:
            raise TruncatedStream("the stream ended within a frame")
        return iter(())


def _read_size(buffer: bytearray, frame_bytes: int) -> int:
    """Read the size of the frame with which a buffer begins.

    Raises:
        TruncatedStream: No frame has this size.
    """
    size, headers = int.from_bytes(buffer[:4]), int.from_bytes(buffer[4:8])
    if size > frame_bytes:
        raise TruncatedStream(f"a frame of the reply is longer than {frame_bytes} bytes")
    if headers > _MAX_HEADER_BYTES or size < _PRELUDE_BYTES + headers + _CHECKSUM_BYTES:
        raise TruncatedStream("a frame of the reply is damaged (its lengths)")
    return size


def _parse_frame(frame: bytes) -> tuple[str, str] | None:
    """Parse a frame with botocore, which verifies its checksums. None: it has no name or no data."""
    from botocore.eventstream import EventStreamBuffer, ParserError  # noqa: PLC0415

    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    try:
        message = buffer.next()
    except (ParserError, StopIteration, ValueError, LookupError, struct.error) as error:
        raise TruncatedStream(f"a frame of the reply is damaged ({type(error).__name__}: {error})") from error
    headers = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    data = message.payload.decode("utf-8", "replace")
    match headers.get(":message-type"):
        case "exception":
            return EXCEPTION, _describe_exception(headers.get(":exception-type", ""), data)
        case "error":
            text = json.dumps({"message": headers.get(":error-message", "")})
            return EXCEPTION, _describe_exception(headers.get(":error-code", ""), text)
    name = headers.get(":event-type")
    return (name, data) if name and data else None


def _describe_exception(kind: str, data: str) -> str:
    """Make the data of an error. AWS begins its type with a small letter in a stream alone."""
    value = parse_json(data)
    fields = value if isinstance(value, dict) else {"message": data}
    text = ""
    for key in ("message", "Message", "originalMessage"):
        with suppress(TypeError):
            text = text or str(fields.get(key) or "")
    return json.dumps({**fields, "type": f"{kind[:1].upper()}{kind[1:]}", "message": text})
