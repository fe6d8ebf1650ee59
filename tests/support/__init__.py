"""What several test modules share. What one of them alone needs stands in that one.

Sessions on workers in this process, that roll over often, of several versions, that encrypt, in other processes:
    `stack`, `rolling`, `versions`, `encrypted`, `processes`
Scripts of models, tools, and what sessions are brought to:
    `scripts`, `toolbox`, `every_state`, `scenarios`
What workers, commands and the workflow sandbox load by name:
    `crew`, `evaluated_agents`, `guards`, `parrot`, `team`, `other_workflows`, `mcp_server`, `bad_mcp_server`
The other side of a worker, providers and stores, and calls of its activities without a server:
    `provider_server`, `provider_echoes`, `s3`, `archives`, `model_calls`
What people and programs use, commands, terminals, pages, events, metrics:
    `command_line`, `command_server`, `typing_terminal`, `web`, `browser`, `ag_ui`, `viewers`, `scraping`
Sessions without a server, and what callers send:
    `session_harness`, `session_invariants`, `ingress`, `hostile_input`, `tokenizing`
Threads, written, generated and hostile, and a naive projection to compare contexts with:
    `threads`, `recorded`, `generated_threads`, `hostile_thread`, `images`, `reference`
The files that released versions have written:
    `corpus`, `shapes`, `release`
How long tests wait, and how many examples they generate:
    `waiting`, `examples`
"""
