"""Tools of MCP servers: settings, connections, results. `connection`, `stdio` and `http` import the package `mcp`."""
