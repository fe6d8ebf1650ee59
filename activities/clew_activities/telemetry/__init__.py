"""What operators see of a worker's activities: log lines, metrics and traces.

| module | content |
|---|---|
| `interceptor` | `TelemetryInterceptor`: observes every attempt of Clew's activities, and logs retries |
| `metrics` | the metrics of model calls, tool calls and the archive |
| `spans` | spans of turns, model calls and tool calls, with the extra `telemetry` |
"""
