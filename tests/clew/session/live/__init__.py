"""Tests of the live channel.

Tested in other modules:

`reader`: test_live
"""
