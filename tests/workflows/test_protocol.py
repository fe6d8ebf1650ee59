"""Inputs and results of activities only grow: a worker ignores the fields that a newer one has added."""

from __future__ import annotations

import pytest

from clew_workflows.protocol import ArchiveRef, Archiving, CheckpointSignature, Prepare, Thawed
from clew_workflows.values import Value
from tests.support.shapes import WORK

ARCHIVE = ArchiveRef(execution="e", family="s-1")


@pytest.mark.parametrize(
    "value",
    [
        Archiving(archive=ARCHIVE),
        Prepare(model="openai:gpt-4o", tools=("add",)),
        CheckpointSignature(namespace="n", fingerprint="f", iat=1, exp=2, kid="k", signature="s"),
    ],
)
def test_an_added_field_is_ignored(value: Value) -> None:
    """The value is the one without the field."""
    dumped = value.model_dump(mode="json")
    assert type(value).model_validate({**dumped, "mood": {"deep": [1]}}) == value


def test_every_type_ignores_unknown_fields() -> None:
    """No type of the protocol forbids them."""
    assert len(WORK) > 30
    assert {kind.model_config.get("extra") for kind in WORK} == {"ignore"}


def test_a_thawed_state_names_its_version() -> None:
    """A worker that is too old for it can say so; without a number it is of the first version."""
    assert Thawed(zlib="", archive=ARCHIVE).version == 1
    assert Thawed.model_validate({"zlib": "", "version": 2}).version == 2
