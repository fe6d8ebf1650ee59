"""Works around faults of Temporal's server and SDK, one fault a module. `docs/upstream` has a page for each.

Only these modules use private parts of temporalio; `private_parts` checks at a worker's start that they exist.

In workflows:   task_commands, slow_timers, wrapped_converter
In converters:  storage_references, failure_details
In clients:     query_buffer, updates_in_flight, refused_updates, started_workflows, cancelled_calls, exit_crash
In workers:     query_ahead, deadlock_timeout, stuck_workflows, short_activations
In audits:      replayed_state

A module names the versions in which its fault was seen, and when it can go. A test fails when the fault is gone.
"""
