"""Tests of the events of a session.

Tested in other modules:

`server`: test_follow: what the server answers shows in the events of a viewer
"""
