"""LangChain's standard tests of chat models, for `ChatOpenAI` with a service. The environment says which."""

import os
from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class Model(ChatModelIntegrationTests):
    """The chat model, over one of the APIs."""

    responses = False

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["MODEL"],
            "base_url": os.environ["BASE_URL"],
            "api_key": os.environ["API_KEY"],
            "use_responses_api": self.responses,
            "stream_usage": True,
            "max_retries": 0,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["OTHER_MODEL"]


class TestChatCompletions(Model):
    """The tests over Chat Completions."""


class TestResponses(Model):
    """The tests over Responses."""

    responses = True
