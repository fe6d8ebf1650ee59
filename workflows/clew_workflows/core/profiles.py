"""Profiles of models, which workers answer.

A session uses the first profile of a model that it gets, and of later ones only the prices. A profile reaches it as
the answer of an activity, never from the code of the workflow, because the code may change before a replay.
"""

from __future__ import annotations

from dataclasses import replace

from clew.contract import ContextPolicy
from clew_workflows.core.state import State
from clew_workflows.protocol import ModelProfile

MAX_PROFILES = 16
"""Profiles that a session keeps: those of its configuration's model and of the newest others."""


def find_agent_policy(state: State) -> ContextPolicy:
    """Find the configuration's policy: its own, or else the one that a worker has chosen for its model.

    Until a worker has described the model, it is the policy in force.
    """
    config = state.config
    if config.context_policy:
        return config.context_policy
    profile = state.profiles.get(state.model)
    return profile.policy if profile else state.policy


def is_known(state: State, model: str) -> bool:
    """Whether a run need not wait for a profile of the model: there is one, or the configuration names the model."""
    return model == state.model or model in state.profiles


def adopt_encoding(state: State, profile: ModelProfile) -> State:
    """Use a worker's encoding, unless the configuration has one.

    The encoding is chosen once, before any entry is committed, because all entries are counted under one.
    """
    if state.has_encoding:
        return state
    return replace(state, own=state.own.model_copy(update={"encoding": profile.encoding}))


def remember_profile(state: State, profile: ModelProfile) -> State:
    """Remember a profile. Of a model that is known already only the prices change."""
    if known := state.profiles.get(profile.model):
        profile = known.model_copy(update={"prices": profile.prices})
    profiles = {name: other for name, other in state.profiles.items() if name != profile.model}
    if len(profiles) >= MAX_PROFILES:
        del profiles[next(name for name in profiles if name != state.model)]
    return replace(state, profiles={**profiles, profile.model: profile})
