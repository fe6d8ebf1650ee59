"""The OpenAI API over sessions: Responses, Conversations, Chat Completions and Models.

| module | content |
|---|---|
| `responses`, `conversations`, `chat_completions`, `models` | the routes |
| `turns` | begin a response in a session, go on with one, follow it, read it again |
| `asks`, `parts`, `inputs`, `fields` | what a request asks for: from its body, purely |
| `events`, `items`, `frames`, `chunks` | the API's events and objects, from the thread, purely |
| `names` | ids that name what they stand for |
| `serving`, `refusals` | what the routes share; errors in the form of the API |
"""

from clew.serve.openai import chat_completions, conversations, models, responses

ROUTERS = (responses.router, conversations.router, chat_completions.router, models.router)
"""The routes of the API."""

__all__ = ["ROUTERS"]
