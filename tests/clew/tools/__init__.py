"""`definition`, the base of all tools, is tested with `function` and `remote`."""
