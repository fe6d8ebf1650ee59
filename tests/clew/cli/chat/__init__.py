"""Tests of the chat on a terminal.

Tested in other modules:

`picture_process`: test_pictures
"""
