"""Tests of MCP servers.

Tested in other modules:

`connection`: test_tools
"""
