"""Tools of MCP servers.

`settings` are those of the file that CLEW_MCP names, `tools` finds and calls tools. `answers` and `input_schemas`
read what servers send, and are pure. `answers`, `connection` and `transports` alone import the package `mcp`.
"""
