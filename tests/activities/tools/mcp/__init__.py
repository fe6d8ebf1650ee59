"""Tests of MCP servers.

Tested in other modules:

`mcp_connection`: test_mcp_tools
"""
