"""The tests of `clew.testing`: `test_stack` is also of its scripts and views, `test_plugin` of pytest's fixtures."""
