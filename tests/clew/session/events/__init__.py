"""Tests of the events of a session.

Tested in other modules:

`history_polls`: test_follow: what the server answers shows in the events of a viewer
"""
