"""The live channel: Redis, over which workers tell viewers what calls say while they run."""
