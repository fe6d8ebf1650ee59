"""The tests of the local parts: `test_local` starts each; `test_child` and `test_scripted` are of their modules."""
