"""Model calls that were refused, and replies, for the tests of budgets."""

from __future__ import annotations

from typing import Any

from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import Failure, ModelAnswered, ModelReply
from tests.support.session_harness import SessionHarness

SMALL = ContextPolicy(max_input_tokens=1_200, reserve_output_tokens=200, window="epoch")


MODEL = "local:tiny"


def begin_small(policy: ContextPolicy | None = SMALL, **config: Any) -> SessionHarness:
    """A session with a budget of 1 000 tokens, counted as a quarter of the bytes."""
    return SessionHarness(table=True, model=MODEL, encoding="heuristic", tools=(), context_policy=policy, **config)


def take_turn(session: SessionHarness, tokens: int, ratio: float = 1.0, answer: str = "fine") -> None:
    """A turn of so many tokens; the provider counts each context by a ratio of its own."""
    session.ask("x" * 4 * tokens)
    reply(session, ratio, answer)


def reply(session: SessionHarness, ratio: float = 1.0, answer: str = "fine") -> None:
    meta = session.build_context(session.call).meta
    usage = Usage(input_tokens=int(meta.estimated_tokens * ratio), output_tokens=1)
    session.take_event(
        ModelAnswered(
            reply=ModelReply(content=answer, usage=usage),
            digest=meta.digest,
            policy_hash=meta.policy_hash,
            input_tokens=meta.estimated_tokens,
            epoch=meta.epoch,
            shared_prefix_tokens=meta.shared_prefix_tokens,
            attempt=1,
        )
    )


def make_refusal(session: SessionHarness, **told: Any) -> Failure:
    """A provider's word that the context is too long, as a worker of today passes it on."""
    counted = session.build_context(session.call).meta.estimated_tokens
    details = {"counted": counted, "status": 400} | told
    return Failure(type="context_length_exceeded", message="too long", details=details)
