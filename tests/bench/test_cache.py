"""The benchmark of prompt caches: it predicts what the arithmetic of epochs says, and runs on a real model."""

from __future__ import annotations

import pytest

from bench.cache import choose_policy, list_contexts, main, make_conversation, predict_cached_share
from clew_workflows.thread.context.projection import Projection

TURNS, TOKENS = 20, 100


@pytest.fixture(scope="module")
def contexts() -> dict[float | None, list[Projection]]:
    """The contexts of a window that slides, and of epochs."""
    thread = make_conversation(4 * TURNS + 80, TOKENS)
    return {mark: list_contexts(thread, TURNS, choose_policy(TURNS * TOKENS, mark)) for mark in (None, 0.5, 0.8)}


@pytest.mark.parametrize("low_water", [0.5, 0.8])
def test_an_epoch_reads_again_what_its_truncation_leaves(
    contexts: dict[float | None, list[Projection]], low_water: float
) -> None:
    """Of windows of n turns, between a mark w and full, 2 / (1 - w²) / n is not cached."""
    assert 1 - predict_cached_share(contexts[low_water]) == pytest.approx(2 / (1 - low_water**2) / TURNS, rel=0.1)


def test_a_window_that_slides_shares_the_system_prompt_alone(contexts: dict[float | None, list[Projection]]) -> None:
    """Its first turn is another one at every call."""
    assert predict_cached_share(contexts[None]) < 0.01


def test_whole_epochs_are_looked_at(contexts: dict[float | None, list[Projection]]) -> None:
    """The first context is the last before a truncation, and so is the last one."""
    first, second, *others, last = contexts[0.5]
    assert first.meta.epoch != second.meta.epoch
    assert last.meta.epoch == others[-1].meta.epoch
    assert abs(len(first.messages) - len(last.messages)) <= 2


@pytest.mark.slow
@pytest.mark.long
def test_a_short_run_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Two sessions talk to the real model, and what its server has counted stands side by side."""
    assert main(["--turns", "3", "--budget", "150"]) == 0
    rows = capsys.readouterr().out
    assert "cached of them" in rows
    assert "prompt processing" in rows
