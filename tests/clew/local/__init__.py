"""The tests of the local parts: `test_local` starts each of them, `test_child` and `test_scripted` are of their modules."""
