"""OpenAI's two APIs, which many other servers have too: Chat Completions and Responses.

| module | content |
|---|---|
| `provider` | the providers: their variables, and which API a server has |
| `chat`, `chat_stream` | Chat Completions: requests, and replies |
| `responses`, `responses_stream` | Responses: requests, and replies |
| `models` | OpenAI's own models, in both APIs, and what the family of another one changes in a dialect |
| `schema` | the schemas of strict mode |
"""
