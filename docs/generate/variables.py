"""The reference of environment variables. A test compares the names with those that the code reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from clew_activities.providers.redaction import SHORTEST
from clew_activities.worker.environment import ALL_WORK, GRACE, MAX_GRACE_SECONDS, Capacity
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.protocol import RolloverThresholds
from docs.generate.commands import list_commands
from docs.generate.tables import separate, table

_CAPACITY: dict[str, Any] = {field.name: field.default for field in fields(Capacity)}
_ROLLOVER = RolloverThresholds()


SHARED = (
    (
        "`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, `TEMPORAL_TLS_…`, `TEMPORAL_PROFILE`",
        "[Temporal's environment configuration](https://docs.temporal.io/develop/environment-configuration): the "
        "server, the namespace, and how the connection is authenticated.",
    ),
    ("`CLEW_TASK_QUEUE`", f"The task queue of sessions. Default: `{TASK_QUEUE}`."),
    (
        "`CLEW_ENCRYPTION_KEYS`",
        "Keys that [encrypt all texts of conversations](../security.md), `kid:base64key`, separated by commas. The "
        "first one encrypts, all decrypt. Workers and clients need them. Make one with `openssl rand -base64 32`.",
    ),
    (
        "`CLEW_ENCRYPTION_CODEC`",
        "A codec of your own instead of keys, as `my_package.codecs:MyCodec`. Workers and clients need it.",
    ),
    (
        "`CLEW_ENCRYPTION_ACCEPT_PLAIN`",
        "`1`: sessions accept inputs and objects that are not encrypted, while you turn encryption on.",
    ),
    (
        "`CLEW_LIVE`",
        "The address of a Redis or Valkey server, the [live channel](../deployment.md#show-each-word-at-once), as "
        "`redis://:PASSWORD@HOST:6379` or `rediss://…` with TLS. Workers and clients that follow sessions need it.",
    ),
    (
        "`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_SERVICE_NAME`, "
        "`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_EXPORTER`, `OTEL_SDK_DISABLED`",
        "Where and how workers and `clew serve` send [traces](../operations.md). Without an endpoint they make none.",
    ),
)
"""Variables of workers, clients and the command line."""

WORKER = (
    ("`CLEW_AGENTS`", "Modules that define [agents](../agents.md), separated by commas."),
    (
        "`CLEW_TOOLS`",
        "Modules that define [tools](../tools.md), separated by commas; a name that ends in `.json` is a file of "
        "declarations.",
    ),
    ("`CLEW_HOOKS`", "Modules that define [hooks](../guardrails.md), separated by commas."),
    (
        "`CLEW_EXTENSIONS`",
        "Modules that register [projectors and tokenizers](../extending.md), separated by commas. Operators' commands "
        "read it, too.",
    ),
    ("`CLEW_MCP`", "A JSON file of [MCP servers](../mcp.md), whose tools sessions can have."),
    ("`CLEW_WEBHOOKS`", "A JSON file of [webhooks](../webhooks.md) that are told of all sessions."),
    (
        "`CLEW_WEBHOOK_SECRET_<NAME>`",
        "The secret `<name>` that signs webhooks, `whsec_` and base64; after a space the one that it replaces.",
    ),
    (
        "`CLEW_WEBHOOK_NETWORKS`",
        "The networks to which webhooks are sent although they are private, as in `10.1.0.0/16,fd00:1::/64`. Default: "
        "none.",
    ),
    (
        "`CLEW_STORE`",
        "The archive: a folder, `s3://bucket/prefix`, `gs://…` or `az://…`, with the cloud's own variables for "
        "credentials, or [a store of your own](../extending.md). Default: `~/.local/share/clew/store`. All workers of a "
        "namespace must share it. S3 servers without conditional writes need `AWS_CONDITIONAL_PUT=disabled`.",
    ),
    (
        "`CLEW_CHECKPOINT_KEYS`",
        "Keys for checkpoints, `kid:base64key`, separated by commas. The first one signs, all verify.",
    ),
    *(
        (f"`CLEW_{name.upper()}`", f"{meaning} of a worker at the same time. Default: {separate(_CAPACITY[name])}.")
        for name, meaning in {
            "model_calls": "Model calls",
            "tool_calls": "Tool calls",
            "store_calls": "Preparations, and calls that read and write archives,",
            "caller_calls": "Calls of other workflows, and webhooks,",
        }.items()
    ),
    (
        "`CLEW_RATE_LIMITS`",
        "The most model calls in a second, by provider: [`openai=50,anthropic=20`](../queues.md). Default: no limits.",
    ),
    ("`CLEW_SERVE`", f"What the worker serves, separated by commas. Default: `{','.join(ALL_WORK)}`."),
    (
        "`CLEW_GRACE_SECONDS`",
        f"Seconds that running calls have to finish after SIGTERM; then another worker repeats them. Default: "
        f"{GRACE.total_seconds():g}; at most {separate(MAX_GRACE_SECONDS)}.",
    ),
    (
        "`TEMPORAL_DEPLOYMENT_NAME`, `TEMPORAL_WORKER_BUILD_ID`",
        "The worker's [version](../upgrading.md). Set both or neither. Default: none.",
    ),
    ("`CLEW_LOG_FORMAT`", "`text` (default) or `json`: the log of a worker and of `clew serve`."),
    (
        "`CLEW_METRICS_ADDRESS`",
        "`IP:PORT` at which a worker or `clew serve` has [metrics](metrics.md) for Prometheus. Default: none.",
    ),
    ("`CLEW_HEALTH_ADDRESS`", "`IP:PORT` of a worker's [health port](../operations.md). Default: none."),
    *(
        (
            f"`CLEW_ROLLOVER_{name.upper()}`",
            f"{name.capitalize()} of an event history at which a session rolls over. Default: "
            f"{separate(getattr(_ROLLOVER, name))}. An open session keeps the value that it began with.",
        )
        for name in RolloverThresholds.model_fields
    ),
    (
        "`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`",
        "`true`: spans have the texts of replies, arguments and results.",
    ),
)
"""Variables of workers."""

MODELS = (
    (
        "`OPENAI_API_KEY`, `OPENAI_BASE_URL`",
        "Models `openai:…`, and the same ones with Chat Completions as `openai-chat:…`.",
    ),
    (
        "`CLEW_PROVIDER_OPENAI_DIALECT`",
        "What the server of `openai:…` speaks: `responses`, or a [dialect](providers.md) of Chat Completions.",
    ),
    ("`ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL`", "Models `anthropic:…`."),
    (
        "`ANTHROPIC_AUTH_TOKEN`",
        "A bearer token, which workers remove from texts like a key.",
    ),
    (
        "`CLEW_PROVIDER_ANTHROPIC_DIALECT`",
        "What the server at `ANTHROPIC_BASE_URL` [accepts](providers.md), if it is not Anthropic's.",
    ),
    (
        "`ANTHROPIC_CACHE_TTL`",
        "How long Anthropic's cache keeps prompts: `5m` (default) or `1h`, which costs more.",
    ),
    (
        "`ANTHROPIC_BETA`",
        "Beta features of all requests to Anthropic, separated by commas, as in `compact-2026-09-04`.",
    ),
    (
        "`GEMINI_API_KEY` or `GOOGLE_API_KEY`, `GOOGLE_BASE_URL`, `GOOGLE_ACCESS_TOKEN`",
        "Models `google:…`, also at Vertex AI.",
    ),
    (
        "`CLEW_BEDROCK_REGION`, `CLEW_BEDROCK_BASE_URL`, `AWS_BEARER_TOKEN_BEDROCK`",
        "Models `bedrock:…` of Amazon Bedrock, with the extra `bedrock`. Without a token it needs AWS credentials.",
    ),
    (
        "`CLEW_PROVIDER_<NAME>_BASE_URL`, `CLEW_PROVIDER_<NAME>_API_KEY`, `CLEW_PROVIDER_<NAME>_DIALECT`",
        "Models `<name>:…` of any server of Chat Completions, Responses or Anthropic's Messages, and what it accepts.",
    ),
    ("`CLEW_PROVIDERS`", "Modules with [other providers](../extending.md), separated by commas."),
    (
        "`CLEW_PROVIDER_<NAME>_HEADERS`, `CLEW_PROVIDER_OPENAI_HEADERS`, `CLEW_PROVIDER_ANTHROPIC_HEADERS`, "
        "`CLEW_PROVIDER_GOOGLE_HEADERS`",
        "A JSON object of [headers](../models.md#send-a-custom-header) that are sent with each request.",
    ),
    (
        "`CLEW_MODELS`, `CLEW_PRICES`",
        "JSON files with the sizes and the prices of [models](../models.md) of your own.",
    ),
)
"""Variables of a worker's model providers."""

OTHERS = (
    (
        "`CLEW_SERVE_CORS_ORIGINS`",
        "`clew serve`",
        "Origins whose pages may call the service, separated by commas. Default: none.",
    ),
    ("`CLEW_CODEC_TOKEN`", "`clew codec-server`", "The token that callers need."),
    (
        "`CLEW_TERMINAL_IMAGES`",
        "`clew chat`",
        "How the terminal takes pictures, if it is not known: `kitty`, `sixel` or `none`.",
    ),
    ("`XDG_DATA_HOME`, `XDG_STATE_HOME`", "all", "Where the default store and the chat's history lie."),
)
"""Variables of single commands that are no options of them."""
_ELSEWHERE = ("CLEW_TASK_QUEUE", "CLEW_METRICS_ADDRESS", "CLEW_LOG_FORMAT", "CLEW_AGENTS", "CLEW_TOOLS")


def make_page() -> str:
    """Make the page."""
    columns = ("variable", "meaning")
    commands = sorted({(variable, name, text) for variable, name, text in _list_variables_of_commands()})
    return (
        "# Environment variables\n\n"
        "Every variable that Clew reads. [Configuration](../configuration.md) says how to begin. Options of commands "
        "override the variables of the same name.\n\n"
        "## Workers, clients and commands\n\n"
        f"{table(columns, SHARED)}\n"
        "## Workers\n\n"
        f"{table(columns, WORKER)}\n"
        "## Models of a worker\n\n"
        f"{table(columns, MODELS)}\n"
        "For example, `CLEW_PROVIDER_OLLAMA_BASE_URL=http://localhost:11434/v1` makes `ollama:llama3.2` a model. "
        f"Workers remove keys and tokens from all texts, if these have {SHORTEST} characters or more.\n\n"
        "## Single commands\n\n"
        f"{table(('variable', 'command', 'meaning'), [*OTHERS, *commands])}"
    )


def _list_variables_of_commands() -> Iterator[tuple[str, str, str]]:
    for words, command in list_commands():
        for param in command.params:
            if param.envvar and param.envvar not in _ELSEWHERE:
                default = getattr(param.default, "value", param.default)
                shown = "" if default in (None, "", [], ()) else f" Default: `{default}`."
                yield f"`{param.envvar}`", f"`clew {words}`", (param.help or "") + shown
