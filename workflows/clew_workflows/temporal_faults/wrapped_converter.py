"""A workflow cannot read its worker's payload converter: unwrap it.

The SDK wraps the converter that the worker was made with, and `workflow.payload_converter()` returns the wrapper.
What the class of the worker's converter says, here whether inputs must be encrypted, is in a private attribute.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#wrapped_converter.
Can go: when `workflow.payload_converter()` is of the worker's own class.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.converter import PayloadConverter


def get_own_converter() -> PayloadConverter:
    """Get the payload converter that the worker of this workflow was made with."""
    converter = workflow.payload_converter()
    own: PayloadConverter = getattr(converter, "_inner_payload_converter", converter)
    return own
