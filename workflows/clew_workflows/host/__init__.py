"""The session in Temporal: handlers, timers, activities, rollover and hibernation."""
