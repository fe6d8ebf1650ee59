"""The tables of fields: they have all fields of the API, and say what the service does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from clew.serve.openai import bodies, fields
from clew.serve.openai.refusals import UnsupportedParameter

RESPONSES = (
    fields.RESPONSES,
    bodies.ResponseCreate,
    response_create_params.ResponseCreateParamsBase,
    {"model": "support", "input": "Hi"},
)
CHAT = (
    fields.CHAT,
    bodies.ChatCreate,
    completion_create_params.CompletionCreateParamsBase,
    {"model": "support", "messages": [{"role": "user", "content": "Hi"}]},
)


@pytest.mark.parametrize(("table", "model", "params", "body"), [RESPONSES, CHAT], ids=["responses", "chat"])
def test_every_field_of_the_api_is_served_or_refused(
    table: Mapping[str, Any], model: Any, params: Any, body: dict[str, Any]
) -> None:
    """The tables have the fields of the official client's newest types, and each is read or refused."""
    assert set(table) == {*params.__annotations__, "stream"}
    assert set(model.model_fields) == {name for name, (support, _) in table.items() if support != "refused"}
    for name, (support, _) in table.items():
        if support == "refused":
            with pytest.raises(UnsupportedParameter) as refused:
                fields.read_body(model, {**body, name: "something"}, table)
            assert refused.value.param == name
            assert fields.read_body(model, {**body, name: None}, table)
