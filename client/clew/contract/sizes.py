"""Bounds of what sessions take and answer, in bytes unless a name says otherwise."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 262_144
"""A whole payload, so that ten in flight stay under the server's 4 MB for one message."""
MAX_TOOL_RESULT_BYTES = 65_536
MAX_SYSTEM_PROMPT_BYTES = 65_536
MAX_PAGE_BYTES = 900_000
"""Every answer to a query stays under 1 MB."""
MAX_TOKEN_BYTES = 512 * 1024
"""Of a checkpoint's token."""
MAX_EDITED_ARGUMENTS_BYTES = 512 * 1024
"""Of all arguments that people have edited in one round: its calls are scheduled in one message of at most 4 MB."""
MAX_PENDING = 64
"""Messages that a preview takes; as many inputs may wait for one run."""
MAX_WAITERS = 6
"""Temporal holds ten updates in flight; the rest is kept free, so that a cancel always gets through."""
MAX_WAIT_SECONDS = 60
