"""The content of messages: its parts, and the descriptions of blobs."""

from clew_workflows.contract.content import (
    AudioPart,
    Blob,
    Content,
    FilePart,
    ImagePart,
    Part,
    TextPart,
    describe_part,
    get_text,
)

__all__ = [
    "AudioPart",
    "Blob",
    "Content",
    "FilePart",
    "ImagePart",
    "Part",
    "TextPart",
    "describe_part",
    "get_text",
]
