"""What a workflow runs: the contract, the thread, the decisions of a session, and the workflows that host them."""
