"""The limits of inputs and answers. Those of what a session keeps stand in `clew_workflows.session`."""

# What a session takes.

MAX_MESSAGE_BYTES = 262_144
"""Largest input, in bytes of JSON: ten updates in flight stay under the server's 4 MB for one message."""
MAX_PENDING = 64
"""Most messages of a preview, and most inputs that wait for one run."""
MAX_SYSTEM_PROMPT_BYTES = 65_536
"""Largest system prompt, in bytes of UTF-8."""
MAX_JSON_DEPTH = 200
"""Most levels of nesting of JSON: fixed, so that all workers accept the same values. Pydantic reads as many."""
MIN_DATA_CHARACTERS = 1000
"""Fewest characters of base64 that are data. Shorter ones are part of a text, such as an icon in a style sheet."""
MAX_METADATA_NAMES = 64
"""Most names of metadata."""
MAX_METADATA_BYTES = 8_192
"""Largest metadata, in bytes of JSON: each tool call that takes a context carries the session's and the request's."""
MAX_PROVIDER_OPTIONS_BYTES = 4096
"""Largest `provider_options`, in bytes of JSON: each call's recipe has them."""
MAX_REQUEST_SECONDS = 30 * 86400
"""Longest time of a request, and of the wait of an external call, in seconds."""
MAX_WAITERS = 6
"""Most updates that wait for a request. Temporal allows ten in flight; the others stay free for a cancellation."""
WAIT_SECONDS = 60
"""Seconds after which the update that has waited the longest gives way to another one."""
MAX_TOKEN_BYTES = 512 * 1024
"""Largest checkpoint token, in bytes."""
MAX_PAGE_BYTES = 900_000
"""Largest page, in bytes: every answer to a query stays under 1 MB."""

# Images, recordings and files.

MAX_PARTS = 100
"""Most parts of a message."""
MAX_BLOB_BYTES = 50 * 1024 * 1024
"""Largest blob, in bytes."""
MAX_MESSAGE_BLOB_BYTES = 100 * 1024 * 1024
"""Most bytes of the blobs of one message."""
MAX_IMAGE_URL_CHARACTERS = 8192
"""Longest address of an image that the provider fetches."""
MAX_CHUNK_BYTES = 1_000_000
"""Most bytes of a blob in one input or answer. In base64, and encrypted, they stay under the 2 MB of a payload."""
MAX_CHUNKS = 1_000
"""Most chunks of one upload."""
UPLOAD_SECONDS = 900
"""Seconds that the signed URL of an upload is valid, unless its caller says otherwise."""
MAX_UPLOAD_SECONDS = 3_600
"""Most seconds that the signed URL of an upload is valid."""

# Tools, their calls and results.

MAX_TOOLS = 128
"""Most tools that a configuration names, and most that a caller defines."""
MAX_TOOLS_BYTES = 262_144
"""Largest size of the schemas of a session's tools together, in bytes, so that each page of a context holds them."""
MAX_TOOL_RESULT_BYTES = 65_536
"""Largest part of a tool result in a message, in bytes of UTF-8."""
MAX_EDITED_ARGUMENTS_BYTES = 512 * 1024
"""Most bytes of the arguments that people edited in one round: one message of at most 4 MB schedules its calls."""
MAX_EDITED_CHARACTERS = 1000
"""Characters of the changed arguments in the note on a call that was edited; the entry has all of them."""
MAX_SERVER_CHARACTERS = 32
"""Longest name of an MCP server."""
MAX_TOOL_CHARACTERS = 64
"""Longest name of a tool that providers accept."""
MAX_SUBAGENT_DEPTH = 5
"""Most subagents above each other: the subagent of a session that callers have started has the depth 1."""
MAX_PREFIX_CHARACTERS = 160
"""Longest id of a session that the ids of its subagents begin with; a longer one is hashed."""
MAX_REASON_CHARACTERS = 1000
"""Characters of the reason of a hook's refusal."""

# JSON Schemas, and what is checked by them.

MAX_SCHEMA_BYTES = 131_072
"""Largest schema, in bytes of JSON."""
MAX_SCHEMA_DEPTH = 64
"""Most levels of nesting in the JSON of a schema."""
MAX_SUBSCHEMAS = 3_000
"""Most subschemas in one schema."""
MAX_OVERLAY = 1_000
"""Most subschemas that apply to the same value, by `$ref`, `allOf`, `anyOf` and similar keywords."""
MAX_CHAIN = 32
"""Most subschemas that apply to the same value, each because of the one before it."""
MAX_EXPANSION = 100_000
"""Most subschemas of a schema with every reference expanded, except for those to a recursive definition."""
MAX_SCHEMA_PATTERNS = 100
"""Most different regular expressions in one schema."""
MAX_PATTERN_CHARACTERS = 1_000
"""Longest regular expression, in characters."""
MAX_ARGUMENT_STEPS = 100_000
"""Most visits to subschemas in the validation of one tool call's arguments."""

# Lists of sessions, and their search attributes.

MAX_SUMMARY_TITLE_CHARACTERS = 60
"""Most characters of a title in the summary of a workflow."""
MAX_TITLE_CHARACTERS = 80
"""Most characters of the title of a session."""
MAX_KEYWORD_CHARACTERS = 255
"""Most characters of a keyword: the columns of Temporal's SQL stores have as many."""
MAX_KEYWORD_BYTES = 1_000
"""Most bytes of a keyword as JSON. The server accepts 2 048 bytes of an attribute."""
MAX_TAGS_BYTES = 1_800
"""Most bytes of the tags as JSON."""

# Webhooks.

MAX_WEBHOOKS = 8
"""Most webhooks of a configuration."""
MAX_WEBHOOK_URL_CHARACTERS = 2000
"""Longest URL of a webhook."""
MAX_NAMED_CALLS = 50
"""Most tool calls that one message to a webhook names."""
