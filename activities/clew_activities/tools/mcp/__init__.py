"""Tools of MCP servers.

`mcp_settings` are those of the file that CLEW_MCP names, `mcp_tools` finds and calls tools. `server_answers` and
`input_schemas` read what servers send, and are pure. `server_answers`, `mcp_connection` and `transports` alone import
the package `mcp`.
"""
