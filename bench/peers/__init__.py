"""Measures other ways to run a durable conversation beside Clew: `python -m bench.peers --help`."""
