"""Model providers: pure encoders and decoders around one HTTP boundary.

providers = load_providers(os.environ)
provider = providers.get("openai")
decoder = RedactedDecoder(provider.make_decoder(), providers.redaction)
reply = await stream(client, provider, request, decoder)
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
