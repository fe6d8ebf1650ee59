"""The settings of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.invalid import Form
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from clew_workflows.contract.names import TASK_QUEUE

MAX_BODY_BYTES = 2_000_000
"""Largest body of a request, in bytes, unless its path takes files."""
MEDIA_BODY_BYTES = 40_000_000
"""Largest body of a request that may have images and files in base64, in bytes."""
MAX_MCP_SESSIONS = 1000
"""Most MCP sessions of a process."""


class ServeSettings(BaseModel):
    """The settings of the service.

    Attributes:
        task_queue: The task queue of the workers.
        cors_origins: The origins whose pages may call the service, exactly; none: CORS is off.
        max_body_bytes: The largest body of a request.
        max_media_body_bytes: The largest body of a request that may have images and files in base64.
        max_blob_bytes: The largest body that is a blob.
        max_mcp_sessions: The most MCP sessions of a process; 0: none, so that each request of an MCP client may reach
            another process.
        describes_itself: Whether `/openapi.json` and `/docs` are served.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_queue: str = TASK_QUEUE
    cors_origins: tuple[
        Annotated[str, Form(r"^https?://[^/*\s]+$", "an origin has no path, for example https://app.example.com")],
        ...,
    ] = ()
    max_body_bytes: int = Field(default=MAX_BODY_BYTES, ge=1)
    max_media_body_bytes: int = Field(default=MEDIA_BODY_BYTES, ge=1)
    max_blob_bytes: int = Field(default=MAX_BLOB_BYTES, ge=1)
    max_mcp_sessions: int = Field(default=MAX_MCP_SESSIONS, ge=0)
    describes_itself: bool = True

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read `CLEW_TASK_QUEUE`, `CLEW_SERVE_CORS_ORIGINS` and `CLEW_SERVE_MCP_SESSIONS`.

        Raises:
            InvalidInput: A value is not valid.
        """
        origins = environ.get("CLEW_SERVE_CORS_ORIGINS", "").split(",")
        settings = {
            "task_queue": environ.get("CLEW_TASK_QUEUE") or TASK_QUEUE,
            "cors_origins": tuple(origin for origin in map(str.strip, origins) if origin),
            "max_mcp_sessions": environ.get("CLEW_SERVE_MCP_SESSIONS") or MAX_MCP_SESSIONS,
        }
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            if error.errors()[0]["loc"][0] == "max_mcp_sessions":
                raise InvalidInput("CLEW_SERVE_MCP_SESSIONS must be a number, or 0") from None
            raise InvalidInput(
                "CLEW_SERVE_CORS_ORIGINS must be origins such as https://app.example.com, separated by commas"
            ) from None
