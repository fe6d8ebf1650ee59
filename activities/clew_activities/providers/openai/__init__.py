"""OpenAI's two APIs, which many other servers have too: Chat Completions and Responses.

| module | content |
|---|---|
| `provider` | the providers: their variables, and which API a server has |
| `chat`, `chat_stream` | Chat Completions: requests, and replies |
| `pages` | what a reply of Chat Completions cites, and the calls of tools that the server ran itself |
| `tagged_text` | thinking that stands in the text of a reply |
| `families` | what a model's family changes in the dialect of its server |
| `responses`, `responses_stream` | Responses: requests, and replies |
| `models` | OpenAI's own models, in both APIs |
| `server`, `schema` | what both APIs have in common: the server's key, and the schemas of strict mode |
"""
