"""Signing: a worker signs the checkpoint that a session has drafted."""

from __future__ import annotations

import asyncio
from typing import Any

from clew.contract import ContextQuery
from clew.contract.receipts import CheckpointReceipt
from clew.errors import CheckpointUnavailable, ClewError, make_refusal
from clew_workflows.core import checkpoints
from clew_workflows.core.commands import Checkpointing
from clew_workflows.protocol import Failure, SignCheckpoint
from clew_workflows.shell import execution
from clew_workflows.shell.recalling import Recalling
from clew_workflows.shell.runtime import Runtime


class Signing:
    """Has checkpoints signed. The worker fetches a draft by query, so that the history holds the token alone."""

    def __init__(self, runtime: Runtime, recalling: Recalling) -> None:
        self._runtime = runtime
        self._recalling = recalling
        self._drafts: dict[int, checkpoints.CheckpointDraft] = {}
        self._number = 0
        self._signing = asyncio.Lock()

    def get_draft(self, number: int) -> dict[str, Any]:
        """Return a draft to a worker, which signs it.

        Raises:
            CheckpointUnavailable: There is no draft with this number, or it has been signed.
        """
        if number not in self._drafts:
            raise CheckpointUnavailable(f"there is no checkpoint {number} to be signed")
        draft = self._drafts[number]
        return {"payload": draft.payload, "fingerprinted": draft.fingerprinted}

    async def sign_checkpoint(self, checkpointing: Checkpointing) -> dict[str, Any]:
        """Draft the checkpoint of a lane as it was at the command, have it signed, and answer the update.

        Raises:
            CheckpointUnavailable: No worker has signed it in time.
            ClewError: The checkpoint cannot be made, or the worker refuses to sign it.
        """
        query = ContextQuery(context_ref=checkpointing.context_ref, at_seq=checkpointing.at_seq)
        failure = await self._recalling.recall(checkpointing.context_ref, checkpointing.state.policy, query)
        if failure:
            raise _make_refusal(failure)
        # One at a time: a workflow task has room for 4 MB, which is less than ten tokens may have.
        async with self._signing:
            return await self._sign(checkpointing)

    async def _sign(self, checkpointing: Checkpointing) -> dict[str, Any]:
        number = self._number = self._number + 1
        try:
            draft = checkpoints.draft_checkpoint(
                checkpointing.state, self._runtime.thread, checkpointing.context_ref, checkpointing.at_seq
            )
            self._drafts[number] = draft
            effect = SignCheckpoint(number=number, expires_seconds=checkpointing.expires_seconds)
            signed = await execution.carry_out(effect, None, self._runtime.state)
            if isinstance(signed, Failure):
                raise _make_refusal(signed)
        finally:
            self._drafts.pop(number, None)
        token = f"{checkpoints.make_signed_part(draft.payload, signed)}.{signed.signature}"
        return CheckpointReceipt(token=token).as_dict()


def _make_refusal(failure: Failure) -> ClewError:
    if failure.type in ("timeout", "worker_lost"):
        return CheckpointUnavailable(f"no worker has signed the checkpoint in time: {failure.message}")
    return make_refusal(failure.type, failure.message)
