"""What a session goes by where its configuration leaves it open: what a worker's catalog chooses for its model.

A worker's choice comes as its answer, which the history keeps, so that the catalog can change while sessions run.
What no worker has answered is looked up in the edition of the catalog that the session knows.
"""

from __future__ import annotations

from dataclasses import replace

from clew.contract import SessionConfig
from clew.contract.policy import ContextPolicy, resolve
from clew.errors import ClewError
from clew_workflows.core.state import State
from clew_workflows.protocol import Prepared


def suiting(state: State, model: str) -> ContextPolicy:
    """The policy that suits a model."""
    known = state.defaults
    if known and known.model == model:
        return known.policy
    return ContextPolicy.for_model(model, known.edition if known else 0)


def agent_policy(state: State, config: SessionConfig) -> ContextPolicy:
    """The policy of the agent's level: the configuration's own, or else what suits the model."""
    return config.context_policy or suiting(state, config.model)


def taken(state: State, answer: Prepared) -> State:
    """The session under what a worker's catalog has chosen, where a model is new to it.

    The encoding is chosen once, before anything is committed: all of a thread is counted under one. A policy that
    does not go with what `configure` has laid over it is left aside.
    """
    if not state.defaults_due or (answer.defaults is None and answer.problem):
        return state
    state = replace(state, defaults_due=False)
    chosen = answer.defaults
    if chosen is None or chosen.model != state.config.model:
        return state
    config = state.config
    if state.tools is None and "encoding" not in config.model_fields_set:
        config = config.model_copy(update={"encoding": chosen.encoding})
    known = replace(state, config=config, defaults=chosen)
    try:
        return replace(known, policy=resolve(session=state.own_policy, agent=agent_policy(known, config)))
    except ClewError:
        return replace(state, config=config)
