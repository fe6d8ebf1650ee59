"""Units that keys share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from clew.serve.shares import Shares


async def take(shares: Shares, key: str, amount: int = 1) -> asyncio.Task[int]:
    """Ask for units, without waiting for them."""
    task = asyncio.create_task(shares.take(key, amount))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_key_gets_its_share_and_no_more() -> None:
    """Another one finds the rest."""
    shares = Shares(4, 3)
    first = [await take(shares, "a") for _ in range(5)]
    assert [task.done() for task in first] == [True, True, True, False, False]
    assert (await take(shares, "b")).done()
    shares.give_back("a", 1)
    assert await first[3] == 1
    assert not first[4].done()
    first[4].cancel()


async def test_what_is_free_goes_to_the_key_that_holds_least() -> None:
    """However many requests of another key came before."""
    shares = Shares(2, 2)
    for _ in range(2):
        assert (await take(shares, "a")).done()
    waiting = [await take(shares, "a") for _ in range(3)]
    other = await take(shares, "b")
    shares.give_back("a", 1)
    assert await other == 1
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_a_large_request_is_not_overtaken() -> None:
    """Small ones of other keys wait behind it, until what it needs is free."""
    shares = Shares(10, 8)
    assert (await take(shares, "a", 5)).done()
    large = await take(shares, "b", 8)
    small = await take(shares, "c", 1)
    assert not large.done()
    assert not small.done()
    shares.give_back("a", 5)
    assert await large == 8
    assert await small == 1


async def test_a_request_for_more_than_the_share_gets_the_share() -> None:
    """It would wait for ever."""
    assert await Shares(10, 4).take("a", 100) == 4


@pytest.mark.parametrize("granted", [False, True])
async def test_a_request_that_is_cancelled_holds_nothing(granted: bool) -> None:
    """Neither while it waits, nor when it was granted in the same moment."""
    shares = Shares(1, 1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(shares.hold("a"))
        waiting = await take(shares, "a")
        if granted:
            await stack.aclose()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await shares.take("a") == 1
