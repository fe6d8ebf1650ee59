"""Model providers: pure encoders and decoders around one HTTP boundary.

providers = providers_from_env(os.environ)
provider = providers.get("openai")
decoder = Screened(provider.decoder(), providers.redaction)
reply = await stream(client, provider, request, decoder)
"""

from clew_activities.providers.errors import ProviderError
from clew_activities.providers.http import http_client, stream
from clew_activities.providers.interface import Decoder, ModelRequest, Provider
from clew_activities.providers.loading import Providers, ProvidersUnusable, providers_from_env
from clew_activities.providers.redaction import Redaction
from clew_activities.providers.screened import Screened

__all__ = [
    "Decoder",
    "ModelRequest",
    "Provider",
    "ProviderError",
    "Providers",
    "ProvidersUnusable",
    "Redaction",
    "Screened",
    "http_client",
    "providers_from_env",
    "stream",
]
