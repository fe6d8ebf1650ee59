"""Bounds of inputs and answers."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 262_144
"""Largest input, in bytes of JSON: ten updates in flight stay under the server's 4 MB for one message."""
MAX_TOOL_RESULT_BYTES = 65_536
"""Largest part of a tool result in a message, in bytes of UTF-8."""
MAX_SYSTEM_PROMPT_BYTES = 65_536
"""Largest system prompt, in bytes of UTF-8."""
MAX_METADATA_NAMES = 64
"""Most names of metadata."""
MAX_METADATA_BYTES = 8_192
"""Largest metadata, in bytes of JSON: each tool call that takes a context carries the session's and the request's."""
MAX_PAGE_BYTES = 900_000
"""Largest page, in bytes: every answer to a query stays under 1 MB."""
MAX_TOKEN_BYTES = 512 * 1024
"""Largest checkpoint token, in bytes."""
MAX_EDITED_ARGUMENTS_BYTES = 512 * 1024
"""Most bytes of the arguments that people edited in one round: one message of at most 4 MB schedules its calls."""
MAX_PENDING = 64
"""Most messages of a preview, and most inputs that wait for one run."""
MAX_WAITERS = 6
"""Most updates that wait for a request. Temporal allows ten in flight; the others stay free for a cancellation."""
WAIT_SECONDS = 60
"""Seconds after which the update that has waited the longest gives way to another one."""
