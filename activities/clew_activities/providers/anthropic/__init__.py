"""Anthropic's Messages API.

| module | content |
|---|---|
| `provider` | the provider: its variables, and requests |
| `messages` | a context as the turns of a request |
| `models` | what each generation of models takes |
| `tools` | the tools that Anthropic runs itself: their declarations, and their calls in replies |
| `schema` | the schemas of answers that the API accepts |
| `stream` | replies |
"""
