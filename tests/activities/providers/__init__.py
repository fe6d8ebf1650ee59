"""Tests of `clew_activities.providers`.

`test_echoes` (no secret is repeated), `test_hostile` (no stream takes all of the worker), `test_llama` (a real
server) and `test_providers` hold promises of all providers, so they have no module of their name.
"""
