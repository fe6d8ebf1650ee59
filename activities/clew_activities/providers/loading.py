"""The providers of a worker: made by the built-in modules and by those that CLEW_PROVIDERS names.

`read_key`, `read_url` and `read_headers` read the variables that configure a provider. Their errors name the variable
and never repeat its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import httpx

from clew_activities.providers.aws import EXTRA, is_installed
from clew_activities.providers.endpoint import CustomHeaders
from clew_activities.providers.interface import Provider
from clew_activities.providers.provider_errors import UnknownModel
from clew_activities.providers.redaction import Redaction, read_secrets
from clew_activities.user_modules import NotImportable, import_user_module
from clew_workflows.contract.extras import ExtraMissing, name_install
from clew_workflows.contract.names import PROVIDER_NAME

VARIABLE = "CLEW_PROVIDERS"
BUILT_IN = (
    "clew_activities.providers.anthropic.provider",
    "clew_activities.providers.bedrock.provider",
    "clew_activities.providers.google.provider",
    "clew_activities.providers.openai.provider",
)

_NAMES = "name must have 1 to 64 lower-case letters, digits, '_' and '-'"
# A name that a variable of the built-in module `openai.provider` can carry.
_VARIABLE_NAME = r"[a-z0-9_]{1,64}"
MAX_HEADERS = 32
"""Most headers of one variable."""
MAX_HEADERS_BYTES = 16 * 1024
"""Most bytes of such a variable."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_RESERVED_HEADERS = frozenset((
    *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection", "content-encoding"),
    *("content-length", "content-type", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
))  # fmt: skip
"""Headers that Clew or HTTP itself writes: another value would break the request or change what its body means."""

_MEMBERS = ("base_url", "encode", "make_decoder", "name", "read_error", "secret_headers", "secrets")


class ProvidersUnusable(ValueError):
    """The providers modules cannot be used. The message names the module and says what to do."""


@dataclass(frozen=True)
class Providers:
    """The providers of this worker.

    Attributes:
        redaction: The redaction of every secret of the worker, whichever provider is called.
    """

    _by_name: Mapping[str, Provider]
    redaction: Redaction = field(default_factory=Redaction)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(sorted(self._by_name))

    def get(self, name: str) -> Provider:
        """Return the provider of a name.

        Raises:
            UnknownModel: This worker has no such provider; the message says which variable adds it.
        """
        provider = self._by_name.get(name)
        if provider is None:
            known = ", ".join(self.names) or "none"
            raise UnknownModel(f"no provider {name[:100]!r} on this worker ({known}): {_describe_remedy(name)}")
        return provider


def load_providers(environ: Mapping[str, str], more_secrets: Iterable[str] = ()) -> Providers:
    """Make the providers that the environment configures.

    `CLEW_PROVIDERS` names modules beside the built-in ones, separated by commas. The worker's other secrets in the
    environment are redacted along with the providers', and `more_secrets` too.

    Raises:
        ExtraMissing: A variable asks for what an extra brings that is not installed.
        ProvidersUnusable: A module cannot be imported, makes no providers, or makes one that cannot be used; or a
            variable's value cannot be used. The message never holds the value.
    """
    names = [name for name in map(str.strip, environ.get(VARIABLE, "").split(",")) if name]
    made_by: dict[str, str] = {}
    by_name: dict[str, Provider] = {}
    for module in (*BUILT_IN, *dict.fromkeys(names)):
        for provider in _make(module, environ):
            if first := made_by.get(provider.name):
                raise _make_error(module, f"makes a provider {provider.name!r}, and so does {first!r}: rename one")
            made_by[provider.name] = module
            by_name[provider.name] = provider
    secrets = [secret for provider in by_name.values() for secret in provider.secrets]
    headers = [header for provider in by_name.values() for header in provider.secret_headers]
    return Providers(by_name, Redaction([*secrets, *more_secrets, *read_secrets(environ)], headers))


def _make(name: str, environ: Mapping[str, str]) -> Iterable[Provider]:
    """Make the providers of a module and check each of them."""
    try:
        module = import_user_module(name)
    except NotImportable as error:
        raise _make_error(name, f"cannot be imported: {error}") from error
    make: Callable[[Mapping[str, str]], Iterable[Provider]] | None = getattr(module, "make_providers", None)
    if not callable(make):
        raise _make_error(name, "defines no function make_providers(environ)")
    try:
        providers = list(make(environ))
    except ExtraMissing:
        raise
    except ValueError as error:
        raise _make_error(name, f"cannot use the environment: {error}") from error
    except Exception as error:
        raise _make_error(name, f"failed: {type(error).__name__}: {error}") from error
    for provider in providers:
        if problem := _find_problem(provider):
            raise _make_error(name, f"makes a {type(provider).__name__} that is not a provider: {problem}")
    return providers


def _find_problem(provider: object) -> str | None:
    """Describe what an object lacks to be a provider, without its values: they may be secrets."""
    if missing := [name for name in _MEMBERS if not hasattr(provider, name)]:
        return f"it has no {', '.join(missing)}"
    name, url = getattr(provider, "name", None), getattr(provider, "base_url", None)
    if not isinstance(name, str) or not re.fullmatch(PROVIDER_NAME, name):
        return f"its {_NAMES}"
    if not isinstance(url, str):
        return "its base_url is not a string"
    if problem := find_url_problem(url):
        return f"its base_url {problem}"
    if url.endswith("/"):
        return "its base_url ends in a slash"
    for member in ("secrets", "secret_headers"):
        texts = getattr(provider, member)
        if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
            return f"its {member} are not a tuple of strings"
    return None


def _make_error(module: str, problem: str) -> ProvidersUnusable:
    return ProvidersUnusable(f"the providers module {module!r} {problem}")


def _describe_remedy(name: str) -> str:
    if name in ("openai", "openai-chat", "anthropic"):
        return f"set {name.partition('-')[0].upper()}_API_KEY"
    if name == "google":
        return "set GEMINI_API_KEY"
    if name == "bedrock":
        install = "" if is_installed() else f"install the extra `{EXTRA}` ({name_install(EXTRA)}), and "
        return f"{install}set CLEW_BEDROCK_REGION"
    if re.fullmatch(_VARIABLE_NAME, name):
        return (
            f"set CLEW_PROVIDER_{name.upper()}_BASE_URL to add an OpenAI-compatible server of that name, or name the "
            f"module that makes it in {VARIABLE}"
        )
    if re.fullmatch(PROVIDER_NAME, name):
        return f"name the module that makes it in {VARIABLE}"
    return f"a provider's {_NAMES}"


def read_key(environ: Mapping[str, str], variable: str) -> str | None:
    """Read a key, without surrounding white space; None: the variable is not set or empty.

    Raises:
        ValueError: The value cannot be a header's value.
    """
    key = environ.get(variable, "").strip()
    if key and not re.fullmatch(r"[!-~]+", key):
        raise ValueError(f"{variable} holds white space or characters that no key has: set it again")
    return key or None


def read_url(environ: Mapping[str, str], variable: str) -> str | None:
    """Read a base URL, without a slash at its end; None: the variable is not set or empty.

    Raises:
        ValueError: The value is not valid as `Provider.base_url`.
    """
    url = environ.get(variable, "").strip()
    if problem := url and find_url_problem(url):
        raise ValueError(f"{variable} {problem}")
    return url.rstrip("/") or None


def read_headers(environ: Mapping[str, str], variable: str) -> CustomHeaders:
    """Read headers to add to a provider's requests: a JSON object of names and values; none if it is not set.

    Raises:
        ValueError: The value is not such an object, or has a name or a value that no request can have, or a header
            that Clew writes itself.
    """
    text = environ.get(variable, "").strip()
    if not text:
        return CustomHeaders()
    if len(text.encode()) > MAX_HEADERS_BYTES:
        raise ValueError(f"{variable} has more than {MAX_HEADERS_BYTES} bytes")
    try:
        # Pairs: of two equal keys an object would keep one.
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, _Pairs):
        example = '{"X-Gateway-Key": "…"}'
        raise ValueError(f"{variable} must be a JSON object of header names and values, as in {example}") from None
    if len(pairs) > MAX_HEADERS:
        raise ValueError(f"{variable} has more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for number, (name, value) in enumerate(pairs, 1):
        # Neither is repeated: a name may be the value, if the two were exchanged.
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{variable}: the name of header {number} is not the name of an HTTP header")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"{variable}: the value of header {number} must be a text of printable ASCII characters")
        lower = name.lower()
        if lower in _RESERVED_HEADERS:
            raise ValueError(f"{variable}: Clew writes {lower!r} itself: leave it out")
        if lower in headers:
            raise ValueError(f"{variable}: header {number} has the name of an earlier one")
        headers[lower] = value
    return CustomHeaders(tuple(headers.items()))


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, in their order."""


def find_url_problem(text: str) -> str | None:
    """Describe why a text cannot be a base URL, as the end of a sentence; None: it can."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return "is not a URL"
    if url.scheme not in ("http", "https") or not url.host:
        return "must be an http:// or https:// URL with a host"
    if url.userinfo:
        return "must not hold a user or a password: set the key in its own variable"
    if url.query or url.fragment:
        return "must not hold a query or a fragment: a path is added to it"
    return None
