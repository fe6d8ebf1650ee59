"""Messages and tool schemas of model calls, their canonical form, their tokens and their prices."""

from clew.model.canonical import canonicalize, compute_digest
from clew.model.messages import Message, ProviderData, ToolCall, ToolSpec
from clew.model.tokens import ENCODINGS, Encoding, EncodingName, load_encoding

__all__ = [
    "ENCODINGS",
    "Encoding",
    "EncodingName",
    "Message",
    "ProviderData",
    "ToolCall",
    "ToolSpec",
    "canonicalize",
    "compute_digest",
    "load_encoding",
]
