"""What is public is named in `__all__`, and nothing else is there to be imported by chance."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest
from pydantic import BaseModel

from clew_workflows.contract import errors

FACES = (
    "clew",
    "clew.contract",
    "clew.contract.content",
    "clew.errors",
    "clew.thread",
    "clew.context",
    "clew_workflows.contract",
    "clew.session",
    "clew.tools",
)


def members(module: ModuleType) -> set[str]:
    """The names that a module offers, without its own submodules and what `from __future__` leaves."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }


@pytest.mark.parametrize("name", [name for name in FACES if name != "clew.errors"])
def test_a_package_exports_what_it_names(name: str) -> None:
    """A name that is imported into a face without being exported is a mistake, and so is the reverse."""
    module = importlib.import_module(name)
    assert members(module) == set(module.__all__)


def test_every_error_is_exported() -> None:
    """The tree in `clew.errors` is what can be imported from it."""
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    own = {name for name in classes if vars(errors)[name].__module__ == errors.__name__}
    assert set(errors.__all__) == own | {"REFUSALS", "make_refusal"}


@pytest.mark.parametrize("name", FACES)
def test_every_attribute_has_a_line_of_its_own(name: str) -> None:
    """The docstring of a public type, or of its base, names each attribute that it declares, under `Attributes:`."""
    module = importlib.import_module(name)
    missing = []
    for exported in module.__all__:
        value = getattr(module, exported)
        if not inspect.isclass(value) or exported == "TranscriptMessage":  # a TypedDict repeats what it inherits
            continue
        fields = [field for field in vars(value).get("__annotations__", {}) if not field.startswith("_")]
        if issubclass(value, BaseModel):
            fields = [field for field in fields if field in value.model_fields]
        described = "".join(inspect.cleandoc(base.__doc__ or "") for base in value.__mro__)
        missing += [f"{exported}.{field}" for field in fields if f"    {field}: " not in described]
    assert not missing
