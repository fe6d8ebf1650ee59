"""The options of a model call as a provider takes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.provider_errors import BadRequest
from clew_workflows.contract.config import ReasoningEffort

EFFORTS: tuple[str, ...] = get_args(ReasoningEffort)
"""The levels of reasoning, from none to the most."""
LOW_TO_HIGH = ("low", "medium", "high")
LOW_TO_XHIGH = (*LOW_TO_HIGH, "xhigh")
LOW_TO_MAX = (*LOW_TO_XHIGH, "max")


def choose_effort(effort: str | None, accepted: Sequence[str]) -> str | None:
    """Choose the accepted level that is nearest, the higher one of two; None: there is none, or none is wanted.

    `none` is sent only where it is accepted: another level would reason.
    """
    if effort is None or effort in accepted:
        return effort
    wanted = EFFORTS.index(effort)
    known = [level for level in EFFORTS if level in accepted and level != "none"]
    if effort == "none" or not known:
        return None
    return min(reversed(known), key=lambda level: abs(EFFORTS.index(level) - wanted))


def get_object(value: object, name: str) -> Mapping[str, Any]:
    """Return the object of a name in a body that may have a caller's own fields; empty: there is none."""
    member = value.get(name) if isinstance(value, Mapping) else None
    return member if isinstance(member, Mapping) else {}


def merge_provider_options(
    body: dict[str, Any], request: ModelRequest, provider: str, owned: Collection[str]
) -> dict[str, Any]:
    """Merge the caller's own fields for a provider into a request's body. Objects are merged, other values replaced.

    Raises:
        BadRequest: One of the fields is `owned`: Clew writes it. Or one would replace an object or a list by another
            type.
    """
    options = (request.options.provider_options or {}).get(provider)
    if not options:
        return body
    if taken := sorted(set(options) & set(owned)):
        raise BadRequest(
            f"provider_options.{provider} cannot set {', '.join(taken)}: Clew writes these fields itself"
        )
    return _merge(body, options, f"provider_options.{provider}")


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged = dict(lower)
    for name, value in upper.items():
        known, place = merged.get(name), f"{path}.{name}"
        for kind, word in ((dict, "an object"), (list, "a list")):
            if isinstance(known, kind) and not isinstance(value, kind):
                raise BadRequest(f"{place} must be {word}: Clew sends one, which it is merged into or replaces")
        merged[name] = _merge(known, value, place) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def describe_provider_tools(
    names: Sequence[str], offered: Collection[str], provider: str
) -> tuple[list[str], dict[str, str]]:
    """Divide the provider's tools into those that it offers, and those that are left out, each with the reason."""
    left_out = {name: f"{provider} does not run it" for name in names if name not in offered}
    return [name for name in names if name in offered], left_out


_DRAWING = re.compile(r"(^|[^a-z])image([^a-z]|$)")
_SPEAKING = re.compile(r"(^|[^a-z])(audio|tts)([^a-z]|$)")


def draws_images(model: str) -> bool:
    """Whether a model draws, by its name: `gemini-3-pro-image`, `google/gemini-2.5-flash-image`."""
    return _DRAWING.search(model.lower()) is not None


def expects_media(request: ModelRequest) -> bool:
    """Whether the reply to a request may have images or recordings, so that it may be larger than a text."""
    if "image_generation" in request.provider_tools or draws_images(request.model):
        return True
    options = (request.options.provider_options or {}).values()
    asked = any({"modalities", "generationConfig", "audio"} & fields.keys() for fields in options)
    return asked or _SPEAKING.search(request.model.lower()) is not None
