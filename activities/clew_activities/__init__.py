"""All code of a worker with effects.

| package or module | content |
|---|---|
| `worker` | the worker: its environment, its activities on their task queues, its process |
| `model` | model calls and summaries |
| `providers` | the formats of model providers, and the HTTP calls |
| `tools` | tools, hooks, MCP servers |
| `archive` | the archive, and the activities that read and write it |
| `checkpoint_signing`, `callers` | activities for checkpoints, and those with which other workflows call sessions |
| `webhook_sending` | the activity that sends a notice to a URL |
| `inspection`, `inspection_process`, `file_types`, `received_media` | what the bytes of a blob are |
| `telemetry` | metrics, traces and log lines of activities |
| `heartbeats`, `offload` | what activities share: heartbeats, and work in threads |
| `http_server` | the HTTP server of the health port and the codec server |
| `user_modules` | the import of a team's modules |
"""
