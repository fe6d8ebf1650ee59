"""Tools of MCP servers.

`settings` are those of the file that CLEW_MCP names, `tools` finds and calls tools. `connection` and `transports`
alone import the package `mcp`.
"""
