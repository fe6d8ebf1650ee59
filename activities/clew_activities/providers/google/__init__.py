"""Gemini's own API, `generateContent`, at Google AI and at Vertex AI.

| module | content |
|---|---|
| `provider` | the provider: its variables, and requests |
| `messages` | a context as the turns of a request |
| `models` | what each generation of models takes |
| `schema` | the schemas of answers that the API accepts |
| `stream` | replies |
"""
