"""Strict servers of model providers, and the matrix that plays real sessions against them.

| module | holds |
|---|---|
| `dialects` | the rows: a server each, with its rules, its wire format and how a user configures it |
| `server_rules` | what each server refuses |
| `official_types` | requests and replies by the types of the providers' own packages |
| `messages_rules` | other servers with the Messages API: their streams, and what they refuse |
| `chat_rules` | functions that make the rules of Chat Completions |
| `chat_completions`, `anthropic_messages` | the wire formats with their quirks; the latter with the API's rules |
| `responses_api` | OpenAI's Responses, with the rules of the API |
| `bedrock_api` | Converse of Amazon Bedrock: frames, signatures and rules |
| `chat_completions`, `anthropic_messages`, `gemini_api` | the wire formats; the latter two with rules |
| `second_google` | a providers module, for a second server of one API |
| `strict_server` | the server of all dialects, over real HTTP, and what the model behind it does |
| `scenarios` | the columns |
| `pure_loop` | sessions without Temporal and without a network, for pairs of dialects |
| `matrix` | the worker that is configured for all servers, and its tools |
| `mcp_tools` | the tools of the sessions that MCP servers have |
"""
