"""What operators see of a worker's activities: log lines, metrics and traces.

| module | holds |
|---|---|
| `attempts` | one attempt of an activity: its ids, and when the next attempt follows |
| `metrics` | the metrics of model calls, tool calls and the archive |
| `spans` | spans of turns, model calls and tool calls, with the extra `telemetry` |
| `interceptor` | `TelemetryInterceptor`: observes every attempt of Clew's activities |
"""
