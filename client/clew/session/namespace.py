"""The search attributes of sessions in a Temporal namespace: which it has, and registering them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from clew.session.transport import translate_error
from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, AttributeType

USABLE_SECONDS = 30.0
"""Seconds within which a server must know a search attribute that it has registered."""
_PAUSE_SECONDS = 0.1
_TYPES: Mapping[AttributeType, IndexedValueType.ValueType] = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
}
_REFUSED = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED)


@dataclass(frozen=True, slots=True)
class NamespaceSetup:
    """The result of `setup_namespace`.

    Attributes:
        namespace: The namespace.
        registered: The search attributes that it has registered.
        present: Those that the namespace had already.
        mistyped: Those that the namespace has with another type. Sessions do not set them.
        refused: Those that the server does not let this client register: an operator must create them.
        reason: Why it does not; None if it does.
    """

    namespace: str
    registered: Sequence[str] = ()
    present: Sequence[str] = ()
    mistyped: Sequence[str] = ()
    refused: Sequence[str] = ()
    reason: str | None = None


async def find_registered(client: Client) -> list[str]:
    """Find the search attributes of sessions that the namespace has with the right type.

    Raises:
        RPCError: The server does not say.
    """
    known = await _list_types(client)
    if isinstance(known, RPCError):
        return []
    return [name for name, kind in SEARCH_ATTRIBUTES.items() if known.get(name) == _TYPES[kind]]


async def setup_namespace(client: Client) -> NamespaceSetup:
    """Register the search attributes that the namespace lacks, and wait until the server knows them.

    Raises:
        ServerUnreachable: The server does not answer, or has no such namespace.
        ClewError: The server refused the call for another reason than a missing permission.
    """
    try:
        return await _setup(client)
    except RPCError as error:
        raise translate_error(error, "") from error


async def _setup(client: Client) -> NamespaceSetup:
    namespace = client.namespace
    known = await _list_types(client)
    if isinstance(known, RPCError):
        return NamespaceSetup(namespace, refused=list(SEARCH_ATTRIBUTES), reason=known.message)
    present = [name for name, kind in SEARCH_ATTRIBUTES.items() if known.get(name) == _TYPES[kind]]
    mistyped = [name for name in SEARCH_ATTRIBUTES if name in known and name not in present]
    missing: dict[str, AttributeType] = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known}
    setup = NamespaceSetup(namespace, present=present, mistyped=mistyped)
    if not missing:
        return setup
    request = AddSearchAttributesRequest(
        namespace=namespace, search_attributes={name: _TYPES[kind] for name, kind in missing.items()}
    )
    try:
        await client.operator_service.add_search_attributes(request, retry=True)
    except RPCError as error:
        if error.status == RPCStatusCode.ALREADY_EXISTS:
            # Another client has registered some of them meanwhile.
            return await _setup(client)
        if error.status not in _REFUSED:
            raise
        return NamespaceSetup(namespace, (), present, mistyped, list(missing), error.message)
    await _wait_until_usable(client, missing)
    return NamespaceSetup(namespace, list(missing), present, mistyped)


async def _list_types(client: Client) -> Mapping[str, IndexedValueType.ValueType] | RPCError:
    """List the namespace's search attributes with their types; the error where this client may not list them."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        return (await client.operator_service.list_search_attributes(request, retry=True)).custom_attributes
    except RPCError as error:
        if error.status not in _REFUSED:
            raise
        # Not every client may list them, but a query may name them.
        if await _can_query(client, SEARCH_ATTRIBUTES):
            return {name: _TYPES[kind] for name, kind in SEARCH_ATTRIBUTES.items()}
        return error


async def _wait_until_usable(client: Client, missing: Mapping[str, AttributeType]) -> None:
    give_up_at = time.monotonic() + USABLE_SECONDS
    while time.monotonic() < give_up_at:
        if await _can_query(client, missing):
            return
        await asyncio.sleep(_PAUSE_SECONDS)


async def _can_query(client: Client, names: Mapping[str, AttributeType]) -> bool:
    """Whether the server accepts a query that names all these search attributes."""
    try:
        await client.count_workflows(" AND ".join(f"{name} IS NULL" for name in names))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True
