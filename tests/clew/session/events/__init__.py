"""`follow` has the tests of `server`, too: what the server answers shows in the events of a viewer."""
