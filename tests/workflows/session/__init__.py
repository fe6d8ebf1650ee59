"""Tests of the decisions of a session."""
