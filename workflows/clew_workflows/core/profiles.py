"""What a session knows of models: their profiles, as workers have answered them.

A profile comes as a worker's answer, which the history keeps, and a session learns of a model once: workers may know
something else tomorrow while sessions run and are replayed. Only the prices are those of the newest answer.
"""

from __future__ import annotations

from dataclasses import replace

from clew.contract import ContextPolicy, SessionConfig
from clew.contract.policy import resolve
from clew.errors import ClewError
from clew_workflows.core.state import State
from clew_workflows.protocol import ModelProfile, Prepared

MAX_PROFILES = 16
"""Profiles that a session keeps: the newest, and that of its configuration's model."""


def find_agent_policy(state: State, config: SessionConfig) -> ContextPolicy:
    """The policy of the agent's level: the configuration's own, or else what a worker has chosen for its model.

    Until a worker has told of the model, the policy in force stays.
    """
    if config.context_policy:
        return config.context_policy
    profile = state.profiles.get(config.model)
    return profile.policy if profile else state.policy


def is_known(state: State, model: str) -> bool:
    """Whether a worker need not be asked about a model before a run: it has told of it, or it was configured."""
    return model == state.config.model or model in state.profiles


def adopt_profile(state: State, answer: Prepared) -> State:
    """The session under what a worker has chosen for its model, where the model is new to it.

    The encoding is chosen once, before anything is committed: all of a thread is counted under one. A policy that
    does not go with what `configure` has laid over it is left aside.
    """
    profile, config = answer.profile, state.config
    if profile is None or profile.model != config.model:
        return state
    if profile.model in state.profiles:
        return remember_profile(state, profile)
    if state.tools is None and "encoding" not in config.model_fields_set:
        config = config.model_copy(update={"encoding": profile.encoding})
    known = remember_profile(replace(state, config=config), profile)
    try:
        return replace(known, policy=resolve(session=state.own_policy, agent=find_agent_policy(known, config)))
    except ClewError:
        return replace(state, config=config)


def remember_profile(state: State, profile: ModelProfile) -> State:
    """The session with what a worker has told of a model; of what it knows already, only the prices are new."""
    if known := state.profiles.get(profile.model):
        profile = known.model_copy(update={"prices": profile.prices})
    profiles = {name: other for name, other in state.profiles.items() if name != profile.model}
    if len(profiles) >= MAX_PROFILES:
        del profiles[next(name for name in profiles if name != state.config.model)]
    return replace(state, profiles={**profiles, profile.model: profile})
