"""The tools of a worker: which it has, and how their calls are carried out. `mcp` has those of MCP servers."""
