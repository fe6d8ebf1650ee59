"""Images of replies: stored before the reply is answered, tried again if the archive fails, and bounded."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from clew.local import Reply, scripted_model
from clew_activities.archive import Archive, Store, StoreUnavailable
from clew_activities.archive.blob_store import Blobs
from clew_activities.model import call_model
from clew_activities.providers import load_providers
from clew_workflows.contract.content import Blob
from clew_workflows.host.retries import MAX_WASTED_ATTEMPTS
from clew_workflows.protocol import ModelAnswered
from tests.support.media import make_png
from tests.support.model_calls import Queried, make_activities, make_environment, open_session


class Failing(Blobs):
    """Blobs whose first writes fail."""

    def __init__(self, failures: int) -> None:
        super().__init__(Archive(Store.from_url("memory://"), "default"))
        self.failures = failures

    async def store(self, *args: Any, **options: Any) -> Blob:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("families", "no route")
        return await super().store(*args, **options)


async def draw(
    blobs: Blobs | None,
    *,
    attempt: int = 1,
    beats: list[tuple[Any, ...]] | None = None,
    model: str = "scripted:m",
    size: int = 0,
) -> ModelAnswered:
    """Make one attempt of a call of a model that draws. `beats`: the heartbeats so far, and then its own."""
    heartbeats: list[tuple[Any, ...]] = [()] if beats is None else beats
    reply = Reply("look:", images=[make_png(30, 20, size=size)])
    async with scripted_model(lambda _body: reply) as provider, httpx.AsyncClient(trust_env=False) as http:
        providers = load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": provider.base_url})
        queried = Queried(open_session(model=model))
        environment = await make_environment(queried, attempt, heartbeats[-1])
        environment.on_heartbeat = lambda *details: heartbeats.append(details)
        activities = make_activities(providers, http, blobs=blobs)
        answer = await environment.run(activities.call_model, queried.session.call)
        assert isinstance(answer, ModelAnswered)
        return answer


async def test_a_reply_names_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails at first is asked again; the reply has parts, their tokens, and no bytes."""
    monkeypatch.setattr(call_model, "FIRST_PAUSE_SECONDS", 0.01)
    blobs = Failing(2)
    answer = await draw(blobs)
    content: Any = answer.reply.content
    assert [part["type"] for part in content] == ["text", "image"]
    assert await blobs.read("s-1", content[1]["blob"]["digest"]) == make_png(30, 20)
    assert (answer.tokens or 0) > 80
    assert len(answer.model_dump_json()) < 2000


async def test_an_archive_that_takes_nothing_fails_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is repeated, since the drawing is lost, and not for ever, since each was paid for."""
    monkeypatch.setattr(call_model, "FIRST_PAUSE_SECONDS", 0.01)
    beats: list[tuple[Any, ...]] = [()]
    for attempt in range(1, MAX_WASTED_ATTEMPTS + 1):
        with pytest.raises(ApplicationError) as failed:
            await draw(Failing(100), attempt=attempt, beats=beats)
        is_final = attempt == MAX_WASTED_ATTEMPTS
        assert (failed.value.type, failed.value.non_retryable) == ("archive_unavailable", is_final)


async def test_without_an_archive_the_reply_says_that_the_image_is_not_kept() -> None:
    """A worker without an archive keeps the text."""
    content = (await draw(None)).reply.content
    assert isinstance(content, str)
    assert content.startswith("look:")


@pytest.mark.parametrize("model", ["scripted:an-image-model", "scripted:m"])
async def test_only_a_model_that_may_draw_has_large_events(model: str) -> None:
    """An image of 3 MB passes the bound of an event of a model that draws, and of no other one."""
    blobs = Failing(0)
    if model == "scripted:m":
        with pytest.raises(ApplicationError) as failed:
            await draw(blobs, model=model, size=3_000_000)
        assert failed.value.type == "truncated_stream"
    else:
        assert isinstance((await draw(blobs, model=model, size=3_000_000)).reply.content, list)
