"""Model providers: pure encoders and decoders around one HTTP boundary.

providers = load_providers(os.environ)
provider = providers.get("openai")
decoder = RedactedDecoder(provider.make_decoder(), providers.redaction)
reply = await stream(client, provider, request, decoder)

Each API has a package. A new provider is a module with the members that `interface` defines and a function
`make_providers`; `loading` finds it. An OpenAI-compatible server needs a row in `dialects` at most.

| module | content |
|---|---|
| `interface`, `loading` | what a provider is, and which ones a worker has |
| `openai` | Chat Completions and Responses, of OpenAI and of compatible servers |
| `anthropic` | Anthropic's Messages |
| `google` | Gemini's `generateContent` |
| `bedrock`, `aws` | Amazon Bedrock's Converse; signatures and frames of AWS |
| `dialects`, `endpoint` | what each server accepts and sends; its address and key |
| `fit_messages`, `fit_tools`, `request_media`, `options`, `answer_object` | a session as a server takes it |
| `encoders` | the encoders by their names, which encode a call again for an audit |
| `http`, `sse`, `reply`, `provider_errors` | the HTTP boundary, its events, replies as they grow, errors |
| `refused_parts` | what a provider refuses of a request, and the request without it |
| `sanitize`, `redaction` | received data made safe to store, removed keys |
"""

from clew_activities.providers.http import make_http_client, stream
from clew_activities.providers.interface import Decoder, ModelRequest, Provider
from clew_activities.providers.loading import Providers, ProvidersUnusable, load_providers
from clew_activities.providers.provider_errors import ProviderError
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
