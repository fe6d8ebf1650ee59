"""The suites and the packages of others, pinned by name and version, run against Clew.

`programs` runs in environments of their own. What does not apply is listed by name with its reason, and a listed one
that passes fails the test, too.
"""
