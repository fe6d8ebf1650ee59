"""What goes to a model and comes back: messages, tool schemas, their canonical form and their tokens."""

from clew.model.canonical import canonical, digest
from clew.model.messages import Message, ProviderData, ToolCall, ToolSpec
from clew.model.tokens import ENCODINGS, Encoding, EncodingName, encoding

__all__ = [
    "ENCODINGS",
    "Encoding",
    "EncodingName",
    "Message",
    "ProviderData",
    "ToolCall",
    "ToolSpec",
    "canonical",
    "digest",
    "encoding",
]
