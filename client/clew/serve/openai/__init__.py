"""The OpenAI API over sessions: Responses, Conversations, Chat Completions and Models.

| module | content |
|---|---|
| `responses`, `conversations`, `chat_completions`, `model_list` | the routes |
| `turns` | begin a response in a session, go on with one, follow it, read it again |
| `asks`, `content_parts`, `bodies`, `fields` | what a request asks for: from its body, purely |
| `history_files` | files with the histories of other libraries, for `clew import-history`: purely |
| `events`, `items`, `frames`, `chunks` | the API's events and objects, from the thread, purely |
| `ids` | ids that name what they stand for |
| `routes`, `refusals` | what the routes share; errors in the form of the API |
"""

from clew.serve.openai import chat_completions, conversations, model_list, responses

ROUTERS = (responses.router, conversations.router, chat_completions.router, model_list.router)
"""The routes of the API."""
PATHS = tuple(router.prefix for router in ROUTERS)
"""What their paths begin with."""

__all__ = ["PATHS", "ROUTERS"]
