"""Options of a model call, as a provider takes them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from clew.contract import ModelOptions
from clew_activities.providers.encoders import ENCODERS
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.options import choose_effort, describe_provider_tools, merge_provider_options
from clew_activities.providers.provider_errors import BadRequest


def make_request(provider_options: dict[str, dict[str, object]] | None) -> ModelRequest:
    """Make a request with the caller's own fields."""
    options = ModelOptions(max_output_tokens=10, provider_options=provider_options)
    return ModelRequest(model="m", messages=[], tools=[], options=options)


@pytest.mark.parametrize(
    ("effort", "accepted", "chosen"),
    [
        ("low", ("low", "high"), "low"),
        ("max", ("low", "high"), "high"),
        ("minimal", ("low", "high"), "low"),
        ("medium", ("low", "high"), "high"),
        ("none", ("none", "low"), "none"),
        ("none", ("low", "high"), None),
        ("minimal", ("none", "high"), "high"),
        ("low", (), None),
        (None, ("low",), None),
    ],
)
def test_the_nearest_accepted_effort_is_chosen(
    effort: str | None, accepted: tuple[str, ...], chosen: str | None
) -> None:
    """Of two that are equally near, the higher one; a call without reasoning never gets some."""
    assert choose_effort(effort, accepted) == chosen


def test_objects_are_merged_and_values_replaced() -> None:
    """A caller's own fields add to the body, also within its objects, and change no other field."""
    body = {"model": "m", "thinking": {"type": "on", "budget": 1}, "stop": ["a"]}
    own: dict[str, dict[str, object]] = {"p": {"thinking": {"budget": 2}, "stop": ["b"], "seed": 3}, "q": {"seed": 4}}
    merged = merge_provider_options(body, make_request(own), "p", ("model", "messages"))
    assert merged == {"model": "m", "thinking": {"type": "on", "budget": 2}, "stop": ["b"], "seed": 3}
    assert body == {"model": "m", "thinking": {"type": "on", "budget": 1}, "stop": ["a"]}


@pytest.mark.parametrize("provider_options", [None, {}, {"q": {"seed": 1}}])
def test_a_request_without_fields_for_the_provider_keeps_its_body(
    provider_options: dict[str, dict[str, object]] | None,
) -> None:
    """Fields for another provider are not sent."""
    body = {"model": "m"}
    assert merge_provider_options(body, make_request(provider_options), "p", ()) == {"model": "m"}


def test_a_field_that_clew_writes_is_refused() -> None:
    """The error names the provider and the field."""
    with pytest.raises(BadRequest, match=r"provider_options\.p cannot set messages:"):
        merge_provider_options({}, make_request({"p": {"messages": [], "seed": 1}}), "p", ("messages", "model"))


def test_tools_that_a_provider_lacks_are_left_out_with_the_reason() -> None:
    """The others keep their order."""
    offered, left_out = describe_provider_tools(["web_search", "code", "maps"], {"maps", "web_search"}, "p")
    assert offered == ["web_search", "maps"]
    assert left_out.keys() == {"code"}


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"thinking": 5}, "thinking"),
        ({"thinking": {"deep": []}}, "thinking.deep"),
        ({"stop": "b"}, "stop"),
        ({"thinking": None}, "thinking"),
    ],
)
def test_an_object_or_a_list_stays_one(own: dict[str, object], field: str) -> None:
    """A value of another type is refused, with its place."""
    body = {"thinking": {"deep": {"budget": 1}}, "stop": ["a"]}
    with pytest.raises(BadRequest, match=rf"^provider_options\.p\.{field} must be"):
        merge_provider_options(body, make_request({"p": own}), "p", ())


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("value", [5, "x", [], None, {"type": 5}])
def test_no_field_of_a_callers_own_breaks_an_encoder(encoder: str, value: object) -> None:
    """It is sent or refused, whatever it is."""
    names = (
        *("thinking", "output_config", "reasoning", "text", "response_format", "generationConfig", "inferenceConfig"),
        *("additionalModelRequestFields", "stop_sequences", "stop", "service_tier", "include", "safetySettings"),
    )
    for name in names:
        options = ModelOptions(
            max_output_tokens=1000,
            reasoning_effort="high",
            stop=("a",),
            temperature=0.5,
            provider_options={"p": {name: value}},
        )
        request = ModelRequest(
            model="claude-sonnet-4-5", messages=[{"role": "user", "content": "?"}], tools=[], options=options
        )
        with suppress(BadRequest):
            ENCODERS[encoder]("p", None).encode(request)
