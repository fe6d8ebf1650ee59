"""The OpenAI API over sessions.

`content_parts`: test_asks, test_responses
`chunks`: test_events, test_chat_completions
`frames`: test_responses
`bodies`: test_fields, test_responses, test_chat_completions
`items`: test_conversations, test_responses
`objects`: tests/clew/serve/test_document
`model_list`: test_chat_completions
`refusals`: test_responses, test_chat_completions
`routes`: test_responses, test_conversations
`turns`: test_responses, test_conversations, test_takeover

`test_clients` has the clients from npm, LangChain and `llm`, `test_takeover_clients` has them while a worker dies.
"""
