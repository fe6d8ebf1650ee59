"""The tools and hooks of a worker.

| module | content |
|---|---|
| `registry` | the tools, agents and hooks that a worker has, and the digests by which sessions notice a change |
| `run_tool`, `run_hooks` | the activities that run them |
| `os_threads` | the OS threads and event loops that tools run in |
| `result_parts` | the parts of results: texts, images, recordings and files |
| `stored_results` | large results, and the tools `read_result` and `view_blob` |
| `mcp` | the tools of MCP servers |
"""
