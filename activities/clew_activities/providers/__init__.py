"""Model providers: pure encoders and decoders around one HTTP boundary.

providers = load_providers(os.environ)
provider = providers.get("openai")
decoder = RedactedDecoder(provider.make_decoder(), providers.redaction)
reply = await stream(client, provider, request, decoder)

A new provider is a module beside these, with the members that `interface` defines and a function `make_providers`;
`loading` finds it. An OpenAI-compatible server needs a row in `dialects` at most.

| module | content |
|---|---|
| `interface`, `loading` | what a provider is, and which ones a worker has |
| `openai`, `openai_stream`, `openai_pages`, `dialects` | Chat Completions, and what each server has of it |
| `responses`, `responses_stream`, `openai_schema` | OpenAI's Responses, and what its strict mode takes of schemas |
| `anthropic`, `anthropic_messages`, `anthropic_models`, `anthropic_tools` | Anthropic's Messages: requests |
| `anthropic_stream`, `anthropic_schema` | Anthropic's Messages: replies, and schemas of answers |
| `google`, `google_stream`, `google_schema` | Gemini's `generateContent` |
| `bedrock`, `bedrock_stream`, `bedrock_models`, `aws` | Amazon Bedrock's Converse, its models, signatures |
| `fit_messages`, `fit_tools`, `options`, `sanitize`, `answer_object` | what a session has, as a server takes it |
| `encoders` | the encoders by their names, which encode a call again for an audit |
| `http`, `reply`, `errors`, `redaction` | the HTTP boundary, replies as they grow, errors, removed keys |
"""

from clew_activities.providers.errors import ProviderError
from clew_activities.providers.http import make_http_client, stream
from clew_activities.providers.interface import Decoder, ModelRequest, Provider
from clew_activities.providers.loading import Providers, ProvidersUnusable, load_providers
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.reply import RedactedDecoder

__all__ = [
    "Decoder",
    "ModelRequest",
    "Provider",
    "ProviderError",
    "Providers",
    "ProvidersUnusable",
    "RedactedDecoder",
    "Redaction",
    "load_providers",
    "make_http_client",
    "stream",
]
