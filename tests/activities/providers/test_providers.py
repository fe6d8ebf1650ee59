import pytest

import clew_activities.providers as providers_package
from clew_activities.providers import load_providers
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.dialects import DIALECTS
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.provider_errors import UnknownModel

KEYS = {"OPENAI_API_KEY": "sk-one\n", "ANTHROPIC_API_KEY": "sk-two"}


def test_what_the_package_offers_is_sorted_and_there() -> None:
    assert sorted(providers_package.__all__) == providers_package.__all__
    assert all(hasattr(providers_package, name) for name in providers_package.__all__)


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ()),
        ({"OPENAI_API_KEY": " "}, ()),
        (KEYS, ("anthropic", "openai", "openai-chat")),
        ({"OPENAI_BASE_URL": "http://localhost:1"}, ("openai", "openai-chat")),
        ({"ANTHROPIC_BASE_URL": "http://localhost:1"}, ("anthropic",)),
        ({"GEMINI_API_KEY": "AIza-1"}, ("google",)),
        ({"GOOGLE_BASE_URL": "http://localhost:1"}, ("google",)),
        ({"CLEW_PROVIDER_LOCAL_BASE_URL": "http://localhost:1/v1", "CLEW_PROVIDER_MY_VLLM_BASE_URL": "https://x"},
         ("local", "my_vllm")),
    ],
)  # fmt: skip
def test_the_environment_says_which_providers_there_are(environ: dict[str, str], names: tuple[str, ...]) -> None:
    assert load_providers(environ).names == names


def test_keys_and_urls_go_to_their_own_provider() -> None:
    environ = KEYS | {
        "CLEW_PROVIDER_LOCAL_BASE_URL": "http://localhost:8080/v1/",
        "CLEW_PROVIDER_GROQ_BASE_URL": "https://groq.example/v1",
        "CLEW_PROVIDER_GROQ_API_KEY": "gsk",
    }
    providers = load_providers(environ)
    assert providers.get("openai") == Responses("openai", "https://api.openai.com/v1", api_key="sk-one")
    assert providers.get("openai-chat") == OpenAI(
        "openai-chat", "https://api.openai.com/v1", DIALECTS["openai"], api_key="sk-one"
    )
    assert providers.get("anthropic") == Anthropic("anthropic", "https://api.anthropic.com", api_key="sk-two")
    assert providers.get("local") == OpenAI("local", "http://localhost:8080/v1", DIALECTS["llamacpp"])
    assert providers.get("groq") == OpenAI("groq", "https://groq.example/v1", DIALECTS["groq"], api_key="gsk")


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://me.openai.azure.com/openai/v1", "azure"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://openai.com.evil.example/v1", "strict"),
        ("https://notopenai.com/v1", "strict"),
        ("http://localhost:4000", "strict"),
    ],
)
def test_a_host_has_its_dialect_and_a_strangers_has_the_strictest(url: str, dialect: str) -> None:
    provider = load_providers({"OPENAI_BASE_URL": url}).get("openai-chat")
    assert isinstance(provider, OpenAI)
    assert provider.dialect.name == dialect


@pytest.mark.parametrize(
    ("environ", "speaks_responses"),
    [
        ({"OPENAI_API_KEY": "sk-one"}, True),
        ({"OPENAI_BASE_URL": "https://eu.api.openai.com/v1"}, True),
        ({"OPENAI_API_KEY": "sk-one", "CLEW_PROVIDER_OPENAI_DIALECT": "openai"}, False),
        ({"OPENAI_BASE_URL": "http://localhost:4000"}, False),
        ({"OPENAI_BASE_URL": "https://openai.com.evil.example/v1"}, False),
        ({"OPENAI_BASE_URL": "https://me.openai.azure.com/openai/v1"}, False),
        ({"OPENAI_BASE_URL": "http://localhost:4000", "CLEW_PROVIDER_OPENAI_DIALECT": " Responses "}, True),
    ],
)
def test_openai_speaks_responses_at_its_own_host_or_where_the_dialect_says_so(
    environ: dict[str, str], speaks_responses: bool
) -> None:
    """`openai-chat` is the same server and speaks Chat Completions, whatever the dialect says."""
    providers = load_providers(environ)
    assert isinstance(providers.get("openai"), Responses if speaks_responses else OpenAI)
    chat = providers.get("openai-chat")
    assert isinstance(chat, OpenAI)
    assert (chat.base_url, chat.secrets) == (providers.get("openai").base_url, providers.get("openai").secrets)


def test_any_server_speaks_responses_where_its_dialect_says_so() -> None:
    url = "https://me.openai.azure.com/openai/v1"
    environ = {
        "CLEW_PROVIDER_AZURE_BASE_URL": url,
        "CLEW_PROVIDER_AZURE_API_KEY": "az-key-1",
        "CLEW_PROVIDER_AZURE_DIALECT": "responses",
    }
    assert load_providers(environ).get("azure") == Responses("azure", url, api_key="az-key-1")


def test_a_variable_names_another_dialect() -> None:
    environ = {"CLEW_PROVIDER_MINE_BASE_URL": "http://x/v1", "OPENAI_BASE_URL": "http://y/v1"}
    dialects = {"CLEW_PROVIDER_MINE_DIALECT": "Mistral", "CLEW_PROVIDER_OPENAI_DIALECT": "openai"}
    providers = load_providers(environ | dialects)
    for name, dialect in (("mine", "mistral"), ("openai", "openai")):
        provider = providers.get(name)
        assert isinstance(provider, OpenAI)
        assert provider.dialect.name == dialect


def test_no_repr_shows_a_key() -> None:
    providers = load_providers(KEYS | {"CLEW_PROVIDER_X_BASE_URL": "http://x", "CLEW_PROVIDER_X_API_KEY": "sk-3"})
    assert "sk-" not in repr(providers) + "".join(repr(providers.get(name)) for name in providers.names)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openai", "set OPENAI_API_KEY"),
        ("openai-chat", "set OPENAI_API_KEY"),
        ("anthropic", "set ANTHROPIC_API_KEY"),
        ("google", "set GEMINI_API_KEY"),
        ("groq", "CLEW_PROVIDER_GROQ_BASE_URL"),
        ("\ud800: rm", "lower-case"),
        ("x" * 5000, "lower-case"),
    ],
)
def test_an_unknown_provider_is_an_unknown_model_and_says_what_to_set(name: str, said: str) -> None:
    with pytest.raises(UnknownModel, match=said) as caught:
        load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": "http://x"}).get(name)
    assert "(local)" in caught.value.message
    assert caught.value.type == "unknown_model"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENAI_BASE_URL", "ftp://x"),
        ("OPENAI_BASE_URL", "localhost:8080"),
        ("OPENAI_BASE_URL", "https://"),
        ("OPENAI_BASE_URL", "http://x:port"),
        ("ANTHROPIC_BASE_URL", "https://me:hunter2@x"),
        ("ANTHROPIC_BASE_URL", "https://x?key=hunter2"),
        ("CLEW_PROVIDER_LOCAL_BASE_URL", "file:///etc/passwd"),
        ("OPENAI_API_KEY", "hunter2 hunter2"),
        ("OPENAI_API_KEY", "hunter2\nx: y"),
        ("OPENAI_API_KEY", "hunter2ü"),
        ("CLEW_PROVIDER_LOCAL_API_KEY", "hunter2"),
        ("CLEW_PROVIDER_OPENAI_BASE_URL", "https://x"),
        ("CLEW_PROVIDER_GOOGLE_BASE_URL", "https://x"),
        ("GOOGLE_ACCESS_TOKEN", "hunter2 hunter2"),
        ("GOOGLE_BASE_URL", "https://us-central1-aiplatform.googleapis.com/hunter2"),
        ("CLEW_PROVIDER_OPENAI_DIALECT", "openai"),
        ("CLEW_PROVIDER_LOCAL_DIALECT", "mistral"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused_by_name_and_without_its_value(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        load_providers({variable: value})
    assert "hunter2" not in str(caught.value)
